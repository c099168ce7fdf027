"""`decide`: the one place where a rule's law is drawn from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from headstart.errors import OptionError
from headstart.interfaces import Draws, Rule
from headstart.records import Decision, Draft
from headstart.rows import Row, as_rows

__all__ = ["decide"]


def decide(
    rule: Rule,
    target_rows: Sequence[Row] | ArrayLike,  # [gamma + 1] rows, or probabilities [gamma + 1, vocab]
    draft: Draft,
    draws: Draws,
    position: int = 0,  # of the first drafted token in prompt + output
) -> Decision:
    """Judge a draft: how many of its tokens stay, and the one extra token after them.

    Order of draws: for a rule that walks, the target's token at each position until one misses; for the others the outcome,
    then the extra token. Raises OptionError unless there are gamma + 1 target rows."""
    plain = isinstance(target_rows, (np.ndarray, list))
    rows: Sequence[Row] = as_rows(target_rows) if plain else target_rows  # type: ignore[assignment]  # rows may be made lazily
    if len(rows) != len(draft) + 1:
        raise OptionError(
            f"`target_rows` must hold one row more than the draft, got {len(rows)} rows for {len(draft)} drafted tokens"
        )
    if rule.walks:
        for place, drafted in enumerate(draft.tokens):
            token = draws.draw(rows[place], position + place)
            if token != drafted:
                return Decision(num_accepted=place, token=token)
        return Decision(num_accepted=len(draft), token=draws.draw(rows[-1], position + len(draft)))
    outcomes = rule.outcome_probs(rows, draft)
    kept = draws.draw(Row(outcomes, None, outcomes.size), position) if len(draft) else 0
    return Decision(num_accepted=kept, token=draws.draw(rule.next_probs(rows, draft, kept), position + kept))
