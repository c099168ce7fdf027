"""The whole loop, enumerated: `Decoder` with its budgets, stops and caches has the law of plain decoding to 1e-12."""

from __future__ import annotations

import pytest

from headstart.decode import Decoder
from headstart.drafters import ModelDrafter, NGramDrafter, NoDrafter
from headstart.records import Sampling
from headstart.verify import RULES
from tests.decode.loops import loop_law, plain_law, random_model, request
from tests.exact import TOLERANCE, Script, SharedScript, distance, every

DRAFTERS = {
    "none": lambda seed, vocab: NoDrafter(),
    "model": lambda seed, vocab: ModelDrafter(random_model(seed + 50, vocab)),
    "model with zeros": lambda seed, vocab: ModelDrafter(random_model(seed + 60, vocab, order=2, zeros=0.4)),
    "itself": lambda seed, vocab: ModelDrafter(random_model(seed, vocab)),
    "ngram": lambda seed, vocab: NGramDrafter(vocab, min_match=1),
}
UNKEYED = [name for name, rule in RULES.items() if not rule.keyed]


def fresh(choices, before) -> Script:
    return Script(choices)


def keyed(choices, before) -> SharedScript:
    return SharedScript(choices, getattr(before, "known", None))


def off(rule: str, drafter, model, script=None, **options) -> float:
    """Distance between the law of the loop and that of plain decoding."""
    script = script or (keyed if RULES[rule].keyed else fresh)
    law = loop_law(Decoder(model, drafter), request(rule=rule, vocab=model.vocab_size, **options), script)
    return distance(law, plain_law(model, request(rule=rule, vocab=model.vocab_size, **options)))


@pytest.mark.parametrize("rule", UNKEYED)
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("gamma", [1, 2, 3])
def test_the_loop_has_the_law_of_plain_decoding(rule, drafter, gamma) -> None:
    """Sequences of length 4, token 2 ends them, tables with and without zeros: law of the text and of its finish reason."""
    for seed, zeros in ((1, 0.0), (2, 0.4)):
        model = random_model(seed, zeros=zeros)
        assert off(rule, DRAFTERS[drafter](seed, 3), model, gamma=gamma, end_ids=(2,)) <= TOLERANCE


@pytest.mark.parametrize("rule", UNKEYED)
@pytest.mark.parametrize("drafter", ["model", "ngram"])
def test_without_an_end_token_and_with_a_longer_prompt(rule, drafter) -> None:
    """All 81 sequences of length 4 after a prompt the n-gram drafter can look up."""
    assert off(rule, DRAFTERS[drafter](4, 3), random_model(4, order=2), prompt=(1, 0, 2, 1, 0), gamma=3) <= TOLERANCE


SAMPLINGS = {
    "truncated": Sampling(temperature=0.8, top_k=2),
    "nucleus": Sampling(temperature=1.3, top_p=0.8, min_p=0.1),
    "penalties": Sampling(temperature=1.0, repetition_penalty=1.7, presence_penalty=0.4, frequency_penalty=0.3),
    "bias and ban": Sampling(temperature=1.0, logit_bias={0: -1.5}, ban=(1,)),
    "minimum length": Sampling(temperature=1.0, min_tokens=2),
    "greedy": Sampling(temperature=0.0, repetition_penalty=1.3),
}


@pytest.mark.parametrize("rule", UNKEYED)
@pytest.mark.parametrize("drafter", ["model", "ngram"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_processed_rows_keep_their_law(rule, drafter, sampling) -> None:
    """Truncation, penalties inside the block (row i's history is prefix + X_1 … X_{i−1}), bans, minimum length, greedy."""
    model = random_model(5)
    assert off(rule, DRAFTERS[drafter](5, 3), model, gamma=3, end_ids=(2,), sampling=SAMPLINGS[sampling]) <= TOLERANCE


@pytest.mark.parametrize("rule", UNKEYED)
@pytest.mark.parametrize("max_tokens", [1, 2, 3])
def test_short_budgets_and_context_limits(rule, max_tokens) -> None:
    """γ = 5 into 1 to 3 tokens of room, by max_tokens and by either model's context limit."""
    model = random_model(6)
    assert off(rule, ModelDrafter(random_model(7)), model, gamma=5, max_tokens=max_tokens) <= TOLERANCE
    limited = random_model(6, context_limit=2 + max_tokens)
    assert off(rule, ModelDrafter(random_model(7)), limited, gamma=5, prompt=(0, 1), max_tokens=9) <= TOLERANCE
    short = ModelDrafter(random_model(7, context_limit=1 + max_tokens))
    assert off(rule, short, model, gamma=5, prompt=(0, 1), max_tokens=4) <= TOLERANCE


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("gamma", [1, 2, 3])
def test_coupled_over_all_shared_noise(drafter, gamma) -> None:
    """`coupled` summed over noise keyed by position, asked again by later rounds: two tokens, where it is the Gumbel race."""
    for seed in (1, 2, 3):
        model = random_model(seed, vocab=2)
        assert off("coupled", DRAFTERS[drafter](seed, 2), model, gamma=gamma) <= TOLERANCE
    end = random_model(4, vocab=2, zeros=0.3)
    assert off("coupled", DRAFTERS[drafter](4, 2), end, gamma=gamma, end_ids=(1,)) <= TOLERANCE


@pytest.mark.parametrize("rule", ["token", "block"])
def test_twin_keyed_draws_break_the_other_rules(rule) -> None:
    """Token or block with draws keyed by position, shared by drafting and judging: the loop's law is lost."""
    assert off(rule, ModelDrafter(random_model(61, vocab=2)), random_model(1, vocab=2), script=keyed) > 0.05


def test_merging_states_changes_nothing() -> None:
    """The same law without merging: the loop replayed from the start down every branch."""
    model, drafter = random_model(8), ModelDrafter(random_model(9))
    decoder = Decoder(model, drafter)

    def run(draws: Script):
        one = request(rule="block", draws=draws, gamma=2, max_tokens=3, end_ids=(2,))
        for _ in decoder.run([one]):
            pass
        return tuple(one.output), one.finish_reason

    law: dict = {}
    for weight, outcome in every(run):
        law[outcome] = law.get(outcome, 0.0) + weight
    start = request(rule="block", gamma=2, max_tokens=3, end_ids=(2,))
    assert distance(law, plain_law(model, start)) <= TOLERANCE
    assert distance(law, loop_law(decoder, start, fresh)) <= TOLERANCE
