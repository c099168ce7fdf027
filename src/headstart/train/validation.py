"""How good a drafter in training is on held-out answers: overlap and agreement at every depth, and the tokens a round would emit.

The answers are the target's own, so no model has to run: along a greedy answer a chain is accepted exactly as far as the head's
first choices agree with it, which makes the block efficiency of greedy decoding a count, not an estimate; a drafted chain that
agrees is the text itself. At temperature 1 a token of the target's text counts as accepted with probability min(1, q/p), and the
expected number of rounds follows by a sum over all ways to cut the text. Knows networks and rollouts; does not know training.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.models.torch_extra import torch
from headstart.rows import FloatArray
from headstart.train.corpus import batch_of
from headstart.train.loop import Learner
from headstart.train.rollouts import Rollout

__all__ = ["expected_rounds", "validate"]


def validate(
    network: Learner,
    rollouts: Sequence[Rollout],
    greedy: Sequence[bool],  # by rollout: whether it was written greedily
    *,
    layers: Sequence[int],
    embeddings: Any,
    head_rows: Any,
    full_head: Any,  # [vocab, hidden]
    token_ids: NDArray[np.int64],  # [draft_vocab]
    depth: int,
) -> dict[str, Any]:
    """Overlap Σ min(p, q) and agreement of first choices by depth, and block efficiency with a chain of `depth`.

    Overlaps are of rows at temperature 1 on all rollouts; agreement and `greedy_block_efficiency` are of the greedy ones,
    `sampled_block_efficiency` of the others."""
    overlaps: list[list[float]] = [[] for _ in range(depth)]
    agreements: list[list[float]] = [[] for _ in range(depth)]
    tokens = {True: 0, False: 0}
    rounds = {True: 0.0, False: 0.0}
    ids = torch.from_numpy(token_ids).to(embeddings.device)
    for rollout, is_greedy in zip(rollouts, greedy, strict=True):
        if len(rollout.tokens) - rollout.num_prompt < 2:
            continue
        with torch.inference_mode():
            overlap, accept = _one(network, rollout, is_greedy, layers, embeddings, head_rows, full_head, ids, depth)
        for level in range(depth):
            overlaps[level].extend(overlap[level])
            if is_greedy:
                agreements[level].extend(accept[level])
        tokens[is_greedy] += accept.shape[1]
        rounds[is_greedy] += expected_rounds(accept)
    return {
        "overlap": [float(np.mean(values)) for values in overlaps],
        "agreement": [float(np.mean(values)) if values else None for values in agreements],
        "greedy_block_efficiency": tokens[True] / rounds[True] if rounds[True] else None,
        "sampled_block_efficiency": tokens[False] / rounds[False] if rounds[False] else None,
    }


def _one(
    network: Learner,
    rollout: Rollout,
    is_greedy: bool,
    layers: Any,
    embeddings: Any,
    head_rows: Any,
    full_head: Any,
    ids: Any,
    depth: int,
) -> tuple[FloatArray, FloatArray]:
    """[depth, tokens] overlaps, and probabilities that each token of the answer is accepted if drafted at that depth."""
    batch = batch_of([rollout], layers).to(embeddings.device)
    outputs = network.outputs(batch, embeddings, depth)
    target = torch.softmax(batch.finals @ full_head.T, dim=-1)
    drafted = target[:, ids]
    count = len(batch.next_tokens)
    overlap, accept = np.zeros((depth, count)), np.zeros((depth, count))
    place = torch.searchsorted(ids, batch.next_tokens).clamp(max=len(ids) - 1)
    known = ids[place] == batch.next_tokens
    for level, output in enumerate(outputs):
        if level and output is outputs[level - 1]:  # a network whose rows do not depend on the depth
            overlap[level], accept[level] = overlap[level - 1], accept[level - 1]
            continue
        logits = output @ head_rows.T
        rows = torch.softmax(logits, dim=-1)
        overlap[level] = torch.minimum(rows, drafted).sum(-1).cpu().numpy()
        if is_greedy:
            hit = (ids[logits.argmax(-1)] == batch.next_tokens).float()
        else:
            p = target[torch.arange(count), batch.next_tokens]
            hit = (rows[torch.arange(count), place] / p).clamp(max=1.0) * known
        accept[level] = hit.cpu().numpy()
    return overlap, accept


def expected_rounds(accept: FloatArray) -> float:
    """Rounds it takes to emit a text of n tokens, where `accept` [gamma, n] says how likely a token is accepted if it is
    drafted as the so-manieth of its round. A round's last token is the target's own."""
    gamma, count = accept.shape
    rounds = np.zeros(count + 1)
    for start in range(count - 1, -1, -1):
        reached, total = 1.0, 1.0
        for level in range(min(gamma, count - start)):
            stay = float(accept[level, start + level])
            if start + level + 1 <= count:
                total += reached * (1 - stay) * rounds[start + level + 1]
            reached *= stay
        total += reached * rounds[min(count, start + gamma + 1)]
        rounds[start] = total
    return float(rounds[0])
