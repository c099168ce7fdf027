"""Where a sequence ends inside a block: end tokens, max tokens, the context limit; and what then is in tokens and caches."""

from __future__ import annotations

import numpy as np
import pytest

from headstart.decode import Decoder
from headstart.drafters import ModelDrafter, NGramDrafter, NoDrafter
from headstart.errors import InputError
from headstart.models.table import TableModel
from headstart.records import Sampling
from headstart.verify import RULES
from tests.decode.loops import finished, random_model, request

GREEDY = Sampling(temperature=0.0)
# Counts 0 1 2 3 4 5 0 1 …: what greedy decoding emits is known, and a copy of it drafts perfectly.
CYCLE = TableModel(np.roll(np.eye(6), 1, axis=1))
rules = pytest.mark.parametrize("rule", RULES)


def cycle(rule: str, **options):
    return request((0,), rule=rule, vocab=6, sampling=GREEDY, **options)


@rules
@pytest.mark.parametrize("end", [1, 2, 3, 4, 5])
def test_an_end_token_inside_an_accepted_block(rule, end) -> None:
    """The draft runs past the end token: tokens, counts and caches stop there, the end token included."""
    decoder = Decoder(CYCLE, ModelDrafter(CYCLE))
    one = cycle(rule, gamma=5, max_tokens=50, end_ids=(end,))
    decoder.begin([one])
    decoder.round([one])
    assert one.output == list(range(1, end + 1))
    assert one.finish_reason == "stop"
    assert one.stats.num_accepted == 5
    assert one.stats.num_cut == 6 - end
    assert one.cache.tokens == tuple(range(end)), "prompt + output − 1"
    assert len(one.draft_state.held) == one.draft_state.cache.length <= end


@rules
def test_whichever_comes_first_names_the_reason(rule) -> None:
    """End token and length cap in one round: the first in the text wins, and the end token wins where they coincide."""
    for end, cap, reason in ((2, 3, "stop"), (3, 2, "length"), (3, 3, "stop")):
        one = cycle(rule, gamma=5, max_tokens=cap, end_ids=(end,))
        finished(Decoder(CYCLE, ModelDrafter(CYCLE)), one)
        assert one.output == list(range(1, min(end, cap) + 1))
        assert one.finish_reason == reason


@rules
@pytest.mark.parametrize("max_tokens", [1, 2, 3, 7])
@pytest.mark.parametrize("drafter", ["model", "ngram", "none"])
def test_exactly_max_tokens(rule, max_tokens, drafter) -> None:
    """γ = 5 and a perfect draft: never over, never under, and nothing is drafted that could not be emitted."""
    made = {"model": ModelDrafter(CYCLE), "ngram": NGramDrafter(6, min_match=1), "none": NoDrafter()}[drafter]
    one = cycle(rule, gamma=5, max_tokens=max_tokens)
    finished(Decoder(CYCLE, made), one)
    assert one.output == [(1 + i) % 6 for i in range(max_tokens)]
    assert one.finish_reason == "length"
    assert one.stats.num_cut == 0


@rules
@pytest.mark.parametrize("room", [1, 2, 3])
def test_a_prompt_that_ends_just_before_the_context_limit(rule, room) -> None:
    """γ = 8 and 1 to 3 tokens of context left: the draft shrinks, the finish reason is length, nothing raises."""
    model = random_model(3, context_limit=10)
    for drafter in (ModelDrafter(random_model(4)), ModelDrafter(random_model(4, context_limit=10)), NGramDrafter(3, min_match=1)):
        (one,) = finished(Decoder(model, drafter), request((0, 1, 2, 0, 1, 2, 0, 1, 2)[: 10 - room], rule=rule, gamma=8))
        assert len(one.output) == min(room, 4)
        assert one.finish_reason == "length"


@rules
def test_a_drafter_with_a_shorter_context(rule) -> None:
    """Past the drafter's limit rounds are plain; the text goes on to its end. A prompt it cannot hold is no error."""
    for prompt, limit in (((0, 1), 8), ((0, 1, 0, 1, 2, 0), 4), ((0, 1, 0, 1), 4), ((0, 1, 0, 1, 2), 4)):
        short = ModelDrafter(random_model(4, context_limit=limit))
        one = request(prompt, rule=rule, gamma=3, max_tokens=20)
        finished(Decoder(random_model(3), short), one)
        assert len(one.output) == 20
        assert one.rounds[-1].num_drafted == 0


def test_a_prompt_that_leaves_no_room() -> None:
    """A prompt as long as the context is refused, saying both numbers."""
    decoder = Decoder(random_model(3, context_limit=4), NoDrafter())
    with pytest.raises(InputError, match="4 tokens long and the context holds 4"):
        decoder.begin([request((0, 1, 2, 0))])
    with pytest.raises(InputError, match="the prompt holds no tokens"):
        request(())


@rules
def test_an_empty_draft_is_a_plain_step(rule) -> None:
    """A prompt of one token gives an n-gram drafter nothing to look up: one token a round, no rate."""
    one = request((0,), rule=rule, max_tokens=1)
    finished(Decoder(random_model(3), NGramDrafter(3)), one)
    assert one.rounds[0].draft == ()
    assert one.stats.acceptance_rate is None
    assert one.stats.block_efficiency == 1


def test_end_tokens_stop_wherever_the_round_falls() -> None:
    """Under `coupled`, whose text is known, every γ ends at the same end token."""
    for seed in range(40):
        outputs = {
            gamma: finished(Decoder(random_model(9), ModelDrafter(random_model(9))), late)[0].output
            for gamma in range(1, 7)
            for late in [request(rule="coupled", seed=seed, gamma=gamma, max_tokens=30, end_ids=(2,))]
        }
        assert len({tuple(output) for output in outputs.values()}) == 1
