"""A drafter of your own, and the proof that it changes nothing.

    python examples/own_drafter.py

`Bigrams` counts which token followed which in this sequence and guesses from its counts. The proof runs on a small table
instead of a language model, once with seeds and once by summing over every way the draws can fall.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import headstart
from headstart import RULES, Decoder, Draft, NoDrafter, Request, Sampling, TableModel
from headstart.probs import SamplingProcessor

VOCAB, PROMPT = 3, [2, 1, 2, 1, 2]


class Bigrams:
    """Guesses from counts of pairs. The whole contract is three methods: `open`, `propose`, `commit`."""

    name = "bigrams"

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def open(self, contexts: Sequence[Any]) -> list[np.ndarray]:
        """One [vocab, vocab] table of counts a sequence, filled from its prompt; half a count everywhere to begin with."""
        states = [np.full((self.vocab_size, self.vocab_size), 0.5) for _ in contexts]
        for state, context in zip(states, contexts, strict=True):
            self.commit(state, context.tokens, None)
        return states

    def propose(self, states: Any, contexts: Any, budgets: Any, draws: Any) -> list[Draft]:
        """A draft for each sequence, every token with the very row it was drawn from."""
        drafts = []
        for counts, context, budget, chance in zip(states, contexts, budgets, draws, strict=True):
            draft, history = Draft(), list(context.tokens)
            for _ in range(budget):
                # The processor makes this row as it makes the target's: same temperature, same bans.
                row = context.processor.row(history, np.log(counts[history[-1]]))
                history.append(chance.draw(row, position=len(history)))
                draft = draft.then(row, history[-1])
            drafts.append(draft)
        return drafts

    def commit(self, state: np.ndarray, tokens: Sequence[int], features: Any) -> None:
        """After a round: count the pairs again. Guesses that were turned down are not in `tokens`."""
        state[:] = 0.5
        np.add.at(state, (list(tokens[:-1]), list(tokens[1:])), 1.0)


class Careless(Bigrams):
    """The same guesses, but with rows they were not drawn from: each claims that every token was as likely."""

    def propose(self, states: Any, contexts: Any, budgets: Any, draws: Any) -> list[Draft]:
        """Drafts whose rows are wrong."""
        flat = headstart.Row.dense(np.full(self.vocab_size, 1 / self.vocab_size))
        honest = super().propose(states, contexts, budgets, draws)
        return [Draft(tokens=draft.tokens, rows=(flat,) * len(draft)) for draft in honest]


class Script:
    """Draws that follow a list, and past its end take the first possible token and note the others."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens, self.taken, self.weight, self.others = list(tokens), 0, 1.0, []

    def draw(self, row: headstart.Row, position: int) -> int:
        """The scripted token; `weight` is the probability of all that was drawn so far."""
        if self.taken == len(self.tokens):
            first, *rest = (int(token) for token in np.flatnonzero(row.to_array()))
            self.others += [[*self.tokens, token] for token in rest]
            self.tokens.append(first)
        self.taken += 1
        self.weight *= row.prob(self.tokens[self.taken - 1])
        return self.tokens[self.taken - 1]


def outputs(decoder: Decoder, rule: str) -> Iterator[tuple[float, tuple[int, ...]]]:
    """(probability, three tokens of output) for every way the draws can fall."""
    todo: list[list[int]] = [[]]
    while todo:
        draws = Script(todo.pop())
        processor = SamplingProcessor(Sampling(temperature=1.0), num_prompt=len(PROMPT), vocab_size=VOCAB)
        request = Request(PROMPT, rule=RULES[rule], draws=draws, processor=processor, max_tokens=3, gamma=2)
        for _ in decoder.run([request]):
            pass
        todo += draws.others
        yield draws.weight, tuple(request.output)


def law(decoder: Decoder, rule: str) -> dict[tuple[int, ...], float]:
    """The law of the output, summed."""
    summed: dict[tuple[int, ...], float] = defaultdict(float)
    for weight, output in outputs(decoder, rule):
        summed[output] += weight
    return summed


def distance(law: dict[tuple[int, ...], float], other: dict[tuple[int, ...], float]) -> float:
    """The largest difference in the probability of an output."""
    return max(abs(law.get(output, 0.0) - other.get(output, 0.0)) for output in law.keys() | other.keys())


def main() -> None:
    """Two proofs, and the proof that the second can fail."""
    model = TableModel(np.random.default_rng(0).dirichlet(np.ones(VOCAB), size=VOCAB))

    # 1. Under `coupled` the text is a function of the seed: with and without the drafter it must be the same.
    llm = headstart.load(model, drafter=Bigrams(VOCAB))
    kept = rounds = 0
    for seed in range(20):
        fast = llm.generate(PROMPT, max_tokens=40, temperature=1.0, seed=seed)
        assert (
            fast.token_ids
            == llm.with_drafter(headstart.NoDrafter()).generate(PROMPT, max_tokens=40, temperature=1.0, seed=seed).token_ids
        )
        kept, rounds = kept + fast.stats.num_accepted, rounds + fast.stats.num_rounds
    print(f"coupled: 20 seeds, the same tokens with and without; {1 + kept / rounds:.2f} decided tokens per target call")

    # 2. `coupled` forgives wrong rows, `token` and `block` do not: sum over every draw.
    plain = law(Decoder(model, NoDrafter()), "block")
    for rule in ("token", "block", "match"):
        off = distance(law(Decoder(model, Bigrams(VOCAB)), rule), plain)
        print(f"{rule}: {len(plain)} outputs, largest difference from the law of plain decoding {off:.0e}")
        assert off < 1e-12

    # 3. A drafter that hands over other rows than it drew from is caught.
    off = distance(law(Decoder(model, Careless(VOCAB)), "token"), plain)
    print(f"token, with rows that were not drawn from: off by {off:.3f}")
    assert off > 0.01


if __name__ == "__main__":
    main()
