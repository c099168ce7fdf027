"""`decide`: the one place where a rule's law is drawn from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from headstart.errors import OptionError
from headstart.interfaces import Draws, Rule
from headstart.records import Decision, Draft
from headstart.rows import Row, as_rows
from headstart.verify.walk import only_chains

__all__ = ["decide"]


def decide(
    rule: Rule,
    target_rows: Sequence[Row] | ArrayLike,  # [nodes + 1] rows, or probabilities [nodes + 1, vocab]
    draft: Draft,
    draws: Draws,
    position: int = 0,  # of the first drafted token in prompt + output
) -> Decision:
    """Judge a draft: which of its tokens stay, and the one extra token after them.

    Order of draws: none where every visited row of the target is a single token. Else, for a rule that walks, the target's token
    at each position until it is not drafted; for the others the outcome (on a tree, under a lossless rule: at each node, which
    child or none), then the extra token. Raises OptionError unless there is a target row for every node, and for a tree under a
    rule for chains."""
    plain = isinstance(target_rows, (np.ndarray, list))
    rows: Sequence[Row] = as_rows(target_rows) if plain else target_rows  # type: ignore[assignment]  # rows may be made lazily
    if len(rows) != len(draft) + 1:
        raise OptionError(
            f"`target_rows` must hold one row more than the draft, got {len(rows)} rows for {len(draft)} drafted tokens"
        )
    if not rule.trees:
        only_chains(rule.name, draft)
    if rule.walks:
        return _walk(rows, draft, draws, position)
    if rule.lossless and (certain := _certain(rows, draft)):
        return certain
    if draft.parents is not None and rule.lossless:
        return _descend(rule, rows, draft, draws, position)
    if not len(draft) and rule.lossless:  # nothing to judge: a plain step
        return Decision(node=0, num_accepted=0, token=draws.draw(rows[0], position))
    outcomes = rule.outcome_probs(rows, draft)
    node = draws.draw(Row(outcomes, None, outcomes.size), position)
    kept = node if draft.parents is None else len(draft.path(node))
    return Decision(node=node, num_accepted=kept, token=draws.draw(rule.next_probs(rows, draft, node), position + kept))


def _certain(rows: Sequence[Row], draft: Draft) -> Decision | None:
    """The decision of every lossless rule where each visited row is a single token, as in greedy decoding; None elsewhere."""
    node, kept = 0, 0
    while True:
        row = rows[node]
        if row.probs.size > 1:
            return None
        token = row.token(0)
        child = draft.child(node, token)
        if child is None:
            return Decision(node=node, num_accepted=kept, token=token)
        node, kept = child, kept + 1


def _walk(rows: Sequence[Row], draft: Draft, draws: Draws, position: int) -> Decision:
    """Draw the target's token, once a node; go on where it is a child."""
    node, kept = 0, 0
    while True:
        token = draws.draw(rows[node], position + kept)
        child = draft.child(node, token)
        if child is None:
            return Decision(node=node, num_accepted=kept, token=token)
        node, kept = child, kept + 1


def _descend(rule: Rule, rows: Sequence[Row], draft: Draft, draws: Draws, position: int) -> Decision:
    """Judge each node with its children as a draft of its own: rows that are not visited are never made."""
    node, kept = 0, 0
    while True:
        star = draft.star(node)
        around = [rows[node]] * (len(star) + 1)  # nothing is asked after a child that has no children
        outcomes = rule.outcome_probs(around, star)
        step = draws.draw(Row(outcomes, None, outcomes.size), position + kept) if len(star) else 0
        if step == 0:
            return Decision(node=node, num_accepted=kept, token=draws.draw(rule.next_probs(around, star, 0), position + kept))
        node, kept = draft.children(node)[step - 1], kept + 1
