"""Experiment 1 of the article *Speculative Decoding From Scratch*: accept or resample, and the target's law comes out.

    python examples/article_step.py

First summed over every guess and every outcome, without chance; then played. Only numpy is needed.
"""

from __future__ import annotations

import numpy as np

from headstart import RULES, Draft, Row, StreamDraws, decide, overlap

P = Row.dense([0.30, 0.25, 0.20, 0.15, 0.07, 0.03])  # the target
Q = Row.dense([0.10, 0.10, 0.30, 0.30, 0.15, 0.05])  # the draft
RULE = RULES["token"]


def summed() -> np.ndarray:
    """[vocab]: the law of the token that is emitted, exactly."""
    law = np.zeros(P.vocab_size)
    for guess in range(Q.vocab_size):
        draft = Draft(tokens=(guess,), rows=(Q,))
        # Two target rows for a draft of one: where the guess is judged, and where the bonus token would come from.
        rejected, accepted = Q.prob(guess) * RULE.outcome_probs([P, P], draft)
        law[guess] += accepted
        law += rejected * RULE.next_probs([P, P], draft, 0).to_array()
    return law


def played(trials: int, seed: int) -> tuple[np.ndarray, float]:
    """[vocab] share of each emitted token, and the share of guesses that were accepted."""
    draws = StreamDraws(seed)
    counts, num_accepted = np.zeros(P.vocab_size), 0
    for _ in range(trials):
        guess = draws.draw(Q, 0)
        decision = decide(RULE, [P, P], Draft(tokens=(guess,), rows=(Q,)), draws)
        counts[guess if decision.num_accepted else decision.token] += 1
        num_accepted += decision.num_accepted
    return counts / trials, num_accepted / trials


def main() -> None:
    """Print both beside the target."""
    exact = summed()
    shares, acceptance = played(trials=20_000, seed=0)
    print("token    target    summed    played")
    for token, (p, law, share) in enumerate(zip(P.probs, exact, shares, strict=True)):
        print(f"{token:5d}  {p:8.4f}  {law:8.4f}  {share:8.4f}")
    print(f"\naccepted {acceptance:.4f} of the guesses; the overlap of the two rows is {overlap(P, Q):.4f}")
    assert np.abs(exact - P.probs).max() < 1e-12
    assert np.abs(shares - P.probs).max() < 0.02  # six standard errors


if __name__ == "__main__":
    main()
