"""Drafting token by token from a model's rows: what every drafter that runs a model has in common.

Each row goes through the target's own processor (temperature, truncation, penalties, bans), so that it resembles the target's,
and every token is drawn from the very row that is handed on. It does not know which model scores, or how its cache is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from headstart.drafts import NOTHING
from headstart.errors import RowError
from headstart.interfaces import Ask, Cache, Context, Draws, Model, Scores
from headstart.records import Draft

__all__ = ["Holding", "LastRows", "extend", "roll_out"]

# (which sequences, the drafts of all) → for each of those, scores whose last row comes after its text and draft.
LastRows = Callable[[Sequence[int], Sequence[Draft]], Sequence[Scores]]


class Holding(Protocol):
    """A drafter model's cache of one sequence, and the tokens in it."""

    cache: Cache
    held: list[int]


def extend(model: Model, states: Sequence[Holding], feeds: Sequence[list[int]], num_logits: int) -> list[Scores]:
    """Score what is new to each state, in one pass; those with nothing new are left out of the answer."""
    pairs = [(state, feed) for state, feed in zip(states, feeds, strict=True) if feed]
    if not pairs:
        return []
    scores = model.score([Ask(cache=s.cache, tokens=feed, num_logits=num_logits) for s, feed in pairs])
    for state, feed in pairs:
        state.held.extend(feed)
    return scores


def roll_out(
    contexts: Sequence[Context],
    rooms: Sequence[int],  # tokens to draft at most, by sequence
    draws: Sequence[Draws],
    last_rows: LastRows,
) -> list[Draft]:
    """One chain a sequence; several share each of the model's passes. A row nothing can be drawn from ends its draft."""
    drafts = [NOTHING] * len(contexts)
    active = [i for i, room in enumerate(rooms) if room > 0]
    while active:
        still = []
        for i, scored in zip(active, last_rows(active, drafts), strict=True):
            history = [*contexts[i].tokens, *drafts[i].tokens]
            try:
                row = scored.row(-1, contexts[i].processor, history)
            except RowError:
                continue  # the draft ends before this row, whatever would have been drawn from it
            drafts[i] = drafts[i].then(row, draws[i].draw(row, len(history)))
            if len(drafts[i]) < rooms[i]:
                still.append(i)
        active = still
    return drafts
