"""Whole sequences from last-token tables: exact expectations under the token rule.

A last-token table [vocab, vocab] is a model whose next token depends on the last one only: row x is the law of the token
after x. Contexts then differ in how well the draft guesses, and follow one another, which the formula for tokens per round
does not know. Every function here sums over all outcomes; `sequence_simulation` plays them.

Rounds are the same whether the last draft is cut at the end of the sequence or shortened to remaining − 1 tokens beforehand:
the sequence ends in that round exactly if the first remaining − 1 guesses are kept, either way.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from headstart.errors import OptionError
from headstart.rows import FloatArray
from headstart.theory.arrays import check_table, check_whole
from headstart.theory.yields import tokens_per_round

__all__ = [
    "article_tables",
    "check_tables",
    "expected_rounds",
    "iid_yield",
    "last_token_law",
    "long_run_yield",
    "stationary_alpha",
    "stationary_law",
]


def article_tables(
    vocab_size: int = 5, temperature: float = 0.7, mix: float = 0.6, seed: int = 2
) -> tuple[FloatArray, FloatArray]:
    """The article's pair of [vocab, vocab] tables: P a softmax of normal noise / temperature, Q = mix·P + (1 − mix)·uniform."""
    logits = np.random.default_rng(seed).normal(size=(vocab_size, vocab_size)) / temperature
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    target: FloatArray = weights / weights.sum(axis=1, keepdims=True)
    return target, mix * target + (1 - mix) / vocab_size


def last_token_law(target_table: ArrayLike, length: int, start: int = 0) -> FloatArray:
    """[length, vocab]: exact law of the token at each position after `start`, with or without speculation.

    Its mean over positions is the expected frequency of each token. Raises OptionError for a table, length or start that
    cannot be."""
    table = check_table("target_table", target_table)
    law = np.zeros((check_whole("length", length, 1), table.shape[0]))
    row = table[check_whole("start", start, 0, most=table.shape[0] - 1)]
    for position in range(length):
        law[position] = row
        row = row @ table
    return law


def expected_rounds(target_table: ArrayLike, draft_table: ArrayLike, gamma: int, length: int, start: int = 0) -> float:
    """Exact E[rounds] to emit `length` tokens after `start`, the last round cut at the end of the sequence.

    E[r, x] = 1 + Σ_{n < r − 1} Σ_y P(a round from x emits n + 1 tokens, the last is y)·E[r − n − 1, y], for r tokens to go.
    `length` / E[rounds] are the tokens per target call. Raises OptionError as `last_token_law`, and for `gamma` below 0."""
    target, draft = check_tables(target_table, draft_table)
    check_whole("length", length, 1)
    check_whole("start", start, 0, most=target.shape[0] - 1)
    ends = _round_ends(target, draft, min(check_whole("gamma", gamma, 0), length - 1))
    rounds = np.zeros((length + 1, target.shape[0]))  # [tokens to go, last token]
    for to_go in range(1, length + 1):
        shorter = min(len(ends), to_go - 1)  # rounds that leave something to do
        later = rounds[to_go - shorter : to_go][::-1]  # [shorter, vocab]
        rounds[to_go] = 1.0 + np.einsum("nxy,ny->x", ends[:shorter], later)
    return float(rounds[length, start])


def long_run_yield(target_table: ArrayLike, draft_table: ArrayLike, gamma: int) -> float:
    """Exact tokens per round of an endless sequence: E[tokens | context] averaged over where rounds start in the long run.

    Where rounds start is a chain of its own, not the law of tokens: rounds end more often where guesses fail. Raises OptionError
    as `expected_rounds`, and where there is no single long run (see `stationary_law`)."""
    target, draft = check_tables(target_table, draft_table)
    ends = _round_ends(target, draft, check_whole("gamma", gamma, 0))
    starts = stationary_law(ends.sum(axis=0))
    return float(np.einsum("x,nxy,n->", starts, ends, np.arange(1, len(ends) + 1)))


def stationary_alpha(target_table: ArrayLike, draft_table: ArrayLike) -> float:
    """Mean overlap Σ_x π(x) Σ_y min(P(y|x), Q(y|x)) over the target's own long-run contexts: the α one would measure on text.

    Leviathan et al. 2023, Corollary 3.6. Raises OptionError as `long_run_yield`."""
    target, draft = check_tables(target_table, draft_table)
    return float(stationary_law(target) @ np.minimum(target, draft).sum(axis=1))


def iid_yield(target_table: ArrayLike, draft_table: ArrayLike, gamma: int) -> float:
    """What `tokens_per_round` says at `stationary_alpha`, as if every guess had the same chance. Raises OptionError as that."""
    return float(tokens_per_round(stationary_alpha(target_table, draft_table), gamma))


def stationary_law(table: ArrayLike) -> FloatArray:
    """[vocab] π with π = π·table, the long-run share of each token.

    Raises OptionError for a table that splits into sets of tokens it never leaves: its long run depends on the start."""
    power = check_table("table", table)
    # The lazy chain has the same π and no period, so its powers converge; squaring 64 times is a run of 2^64 steps.
    power = (power + np.eye(power.shape[0])) / 2
    for _ in range(64):
        power = power @ power
        power /= power.sum(axis=1, keepdims=True)  # or rounding would grow with every squaring
    if np.ptp(power, axis=0).max() > 1e-9:
        raise OptionError("`table` must have one long-run law, got one that splits into sets of tokens it never leaves")
    law: FloatArray = power[0]
    return law


def check_tables(target_table: ArrayLike, draft_table: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Both [vocab, vocab] tables as float64. Raises OptionError unless they are tables over one vocabulary."""
    target, draft = check_table("target_table", target_table), check_table("draft_table", draft_table)
    if target.shape != draft.shape:
        raise OptionError(f"`draft_table` must have the shape of `target_table` {target.shape}, got {draft.shape}")
    return target, draft


def _round_ends(target: FloatArray, draft: FloatArray, gamma: int) -> FloatArray:
    """[gamma + 1, vocab, vocab]: probability that a round from last token x keeps n guesses and ends on token y."""
    # Drafted and kept: q·min(1, p/q) = min(p, q). Rejected and corrected: (1 − Σ min(p, q))·norm((p − q)+) = (p − q)+.
    kept, corrected = np.minimum(target, draft), np.maximum(target - draft, 0.0)
    so_far = np.eye(target.shape[0])
    ends = np.empty((gamma + 1, *target.shape))
    for num_accepted in range(gamma):
        ends[num_accepted] = so_far @ corrected
        so_far = so_far @ kept
    ends[gamma] = so_far @ target
    return ends
