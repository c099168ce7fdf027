"""The loop with the draws people use: goodness of fit of whole sequences, with a twin that shares one stream."""

from __future__ import annotations

from collections import Counter

import pytest
from scipy import stats

from headstart.decode import Decoder
from headstart.drafters import ModelDrafter
from headstart.draws import StreamDraws
from headstart.verify import RULES
from tests.decode.loops import finished, plain_law, random_model, request

FALSE_ALARM, SEQUENCES = 1e-6, 3000
MODEL, DRAFT = random_model(1), random_model(51)


def fit(rule: str, drafter) -> float:
    """χ² survival probability of 3,000 sequences of length 3, each from a seed of its own, against the exact law."""
    law = {outcome: weight for outcome, weight in plain_law(MODEL, request(max_tokens=3)).items() if weight > 0}
    many = [request(rule=rule, seed=seed, gamma=2, max_tokens=3) for seed in range(SEQUENCES)]
    counts = Counter((tuple(one.output), one.finish_reason) for one in finished(Decoder(MODEL, drafter), *many))
    assert set(counts) <= set(law)
    # Cells too small for χ² are put together.
    rare = [outcome for outcome, weight in law.items() if weight * SEQUENCES < 5]
    cells = [[outcome] for outcome in law if outcome not in rare] + ([rare] if rare else [])
    seen = [sum(counts[outcome] for outcome in cell) for cell in cells]
    expected = [sum(law[outcome] for outcome in cell) * SEQUENCES for cell in cells]
    return float(stats.chisquare(seen, expected).pvalue)


@pytest.mark.parametrize("rule", RULES)
def test_sequences_follow_the_targets_law(rule) -> None:
    """Real draws, fixed seeds; false alarm 1e-6 a rule."""
    assert fit(rule, ModelDrafter(DRAFT)) > FALSE_ALARM


class SameStream:
    """Drafts with a second copy of the very stream that judges the draft."""

    name = "same stream"

    def __init__(self) -> None:
        self._inner = ModelDrafter(DRAFT)
        self.commit = self._inner.commit
        self._copies: dict[int, StreamDraws] = {}

    def open(self, contexts):
        return self._inner.open(contexts)

    def propose(self, states, contexts, budgets, draws):
        copies = [self._copies.setdefault(id(each), StreamDraws(len(self._copies))) for each in draws]
        return self._inner.propose(states, contexts, budgets, copies)


@pytest.mark.parametrize("rule", ["token", "block"])
def test_twin_one_stream_for_drafting_and_judging(rule) -> None:
    """Draft and judgement from equal streams: the same test, at the same false-alarm rate, must see it."""
    assert fit(rule, SameStream()) < FALSE_ALARM
