"""Another vocabulary: rows over the tokens both have, and a text that is rewritten as it grows and shrinks."""

from __future__ import annotations

import numpy as np
import pytest

from headstart.decode import Decoder
from headstart.drafters import CrossDrafter
from headstart.draws import KeyedDraws, StreamDraws
from headstart.errors import VocabularyMismatchError
from headstart.models.table import TableModel
from headstart.records import Draft
from headstart.rows import Row
from tests.decode.loops import finished, loop_law, plain_law, random_model, request
from tests.drafters.parts import SPELLING, Spelling
from tests.drafters.test_contract import context
from tests.drafters.test_model import Counted
from tests.exact import TOLERANCE, Script, distance

VOCAB = 4
# 'a' → 2, 'b' → 1, 'c' → 0 to the drafter; 'ab' (2) is the target's alone, 'bc' and 'd' the drafter's.


def first_row(drafter, tokens, **options) -> np.ndarray:
    one = context(tokens, **options)
    (draft,) = drafter.propose(drafter.open([one]), [one], [1], [StreamDraws(0)])
    return draft.rows[0].to_array()


def test_rows_are_the_drafters_cut_to_common_tokens_and_renormalised() -> None:
    """Row of 'd' in the drafter: its probabilities of c, b, a, by the target's numbers, over their sum."""
    law = np.array([0.1, 0.2, 0.3, 0.15, 0.25])
    row = first_row(CrossDrafter(TableModel(law), SPELLING), [0])
    assert row == pytest.approx([0.3 / 0.6, 0.2 / 0.6, 0.0, 0.1 / 0.6], abs=1e-15)


def test_the_drafter_reads_the_text_in_its_own_tokens() -> None:
    """Target text a·ab·c is a a bc to the drafter: what it is fed, and the row it answers with."""
    model = random_model(3, 5, order=2)
    drafter = CrossDrafter(model, SPELLING)
    one = context([0, 2, 3])
    (state,) = drafter.open([one])
    assert state.text.tokens == [2, 2, 3]
    drafter.propose([state], [one], [1], [StreamDraws(0)])
    assert list(state.cache.tokens) == [2, 2, 3]
    law = np.exp(model._logits[2, 3])
    want = np.array([law[2], law[1], 0.0, law[0]])
    assert first_row(drafter, [0, 2, 3]) == pytest.approx(want / want.sum(), abs=1e-12)


def test_a_token_that_joins_what_is_held_is_fed_anew() -> None:
    """After b the target emits c: the drafter held b, and holds bc instead; before it, what is unchanged stays."""
    model = Counted(random_model(1, 5))
    drafter = CrossDrafter(model, SPELLING)
    (state,) = drafter.open([context([0, 1])])
    drafter.propose([state], [context([0, 1])], [1], [KeyedDraws(1)])
    assert list(state.cache.tokens) == [2, 1]
    drafter.commit(state, [0, 1, 3], None)
    assert list(state.cache.tokens) == state.held == [2]
    model.passes.clear()
    drafter.propose([state], [context([0, 1, 3])], [1], [KeyedDraws(1)])
    assert list(state.cache.tokens) == [2, 3]
    assert model.passes == [[1]]


def test_accepted_drafts_are_not_fed_again() -> None:
    """What the drafter fed itself and the target kept stays in the cache."""
    model = Counted(random_model(1, 5))
    drafter = CrossDrafter(model, Spelling(["x", "y", "z", "w"], ["w", "z", "y", "x", "v"]))
    text = [0, 1]
    (state,) = drafter.open([context(text)])
    for turn in range(4):
        (draft,) = drafter.propose([state], [context(text)], [3], [KeyedDraws(turn)])
        text += [*draft.tokens, turn % VOCAB]
        drafter.commit(state, text, None)
        assert list(state.cache.tokens) == state.held == state.text.tokens[: len(text) - 2]
    assert model.passes[1:] == [[1], [1], [1], *[[2], [1], [1]] * 3]


def test_no_draft_inside_a_character() -> None:
    """Nor before a text has begun."""
    drafter = CrossDrafter(random_model(1, 5), SPELLING)
    (state,) = drafter.open([context([0, 1])])
    state.text.whole = False
    (draft,) = drafter.propose([state], [context([0, 1])], [3], [StreamDraws(0)])
    assert len(draft) == 0
    silent = CrossDrafter(random_model(1, 5), Spelling(["", "b", "a", "c"], ["c", "b", "a", "bc", "d"]))
    one = context([0])
    assert len(silent.propose(silent.open([one]), [one], [3], [StreamDraws(0)])[0]) == 0


@pytest.mark.parametrize("rule", ["token", "block", "match"])
@pytest.mark.parametrize(
    "spelling",
    [
        SPELLING,
        Spelling(["a", "b", "ab", "c"], ["ab", "c", "b", "a", "abc"]),
        Spelling(["a", "b", "c", "d"], ["b", "a", "c", "ab", "d"]),
        Spelling(["a", "bb", "cc", "dd"], ["a", "b", "c", "d", "x"]),
    ],
    ids=["some", "all", "all but order", "one"],
)
def test_the_law_is_the_targets(rule, spelling) -> None:
    """Enumerated: unequal vocabularies of several kinds, sequences of length 3."""
    target, draft = random_model(5, VOCAB, order=2), random_model(6, 5, order=2, zeros=0.2)
    options = {"prompt": (0, 1), "rule": rule, "vocab": VOCAB, "gamma": 2, "max_tokens": 3, "end_ids": (3,)}
    law = loop_law(Decoder(target, CrossDrafter(draft, spelling)), request(**options), lambda choices, before: Script(choices))
    assert distance(law, plain_law(target, request(**options))) <= TOLERANCE


class Raw:
    """Hands over the drafter's own probabilities of common tokens, not renormalised: what was not drawn from."""

    name = "cross"

    def __init__(self, model: TableModel) -> None:
        self._inner, self._model = CrossDrafter(model, SPELLING), model
        self.open, self.commit = self._inner.open, self._inner.commit

    def propose(self, *asked):
        return [
            Draft(tokens=draft.tokens, rows=[Row(row.probs * 0.6, row.ids, row.vocab_size) for row in draft.rows])
            for draft in self._inner.propose(*asked)
        ]


def test_twin_without_renormalising_is_caught() -> None:
    """Cutting q without dividing by what is left changes the law."""
    target, model = random_model(5, VOCAB), TableModel(np.array([0.1, 0.2, 0.3, 0.15, 0.25]))
    options = {"prompt": (0, 1), "rule": "token", "vocab": VOCAB, "gamma": 2, "max_tokens": 2}
    off = [
        distance(
            loop_law(Decoder(target, drafter), request(**options), lambda choices, before: Script(choices)),
            plain_law(target, request(**options)),
        )
        for drafter in (CrossDrafter(model, SPELLING), Raw(model))
    ]
    assert off[0] <= TOLERANCE
    assert off[1] > 0.01


def stale(state, text) -> None:
    """Believes that what is held is the text, however the text is spelt now."""
    del state.held[max(0, len(text) - 1) :]
    state.cache.rewind(len(state.held))


def test_twin_that_keeps_old_spellings_is_caught() -> None:
    """Its rows are then those of another text."""
    text, late = [0, 1], [0, 1, 3, 0]
    for keep, same in ((None, True), (stale, False)):
        drafter = CrossDrafter(random_model(1, 5, order=3), SPELLING)
        drafter._keep = keep or drafter._keep
        (state,) = drafter.open([context(text)])
        drafter.propose([state], [context(text)], [1], [KeyedDraws(1)])
        drafter.commit(state, late, None)
        (draft,) = drafter.propose([state], [context(late)], [1], [KeyedDraws(1)])
        fresh = first_row(CrossDrafter(random_model(1, 5, order=3), SPELLING), late)
        assert (draft.rows[0].to_array().tolist() == fresh.tolist()) == same


def test_coupled_text_does_not_depend_on_it() -> None:
    """The same tokens with and without drafts."""
    decoder = Decoder(random_model(5, VOCAB), CrossDrafter(random_model(6, 5), SPELLING))
    for seed in range(10):
        fast, plain = (request((0, 1), vocab=VOCAB, rule="coupled", seed=seed, max_tokens=30, gamma=gamma) for gamma in (4, 0))
        assert finished(decoder, fast)[0].output == finished(decoder, plain)[0].output
        assert fast.stats.num_accepted > 0


def test_nothing_in_common_is_refused() -> None:
    """By name."""
    with pytest.raises(VocabularyMismatchError, match="cross:x has no token in common"):
        CrossDrafter(random_model(1, 5), Spelling(["a"], ["b", "c", "d", "e", "f"]), name="cross:x")
