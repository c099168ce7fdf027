"""Where training starts: the best linear guess of the target's next hidden state, in closed form.

Half a minute of least squares on the rollouts saves most of the training: fc and a few attention heads are set so that the head
computes W · (hidden states at t) + U · (embedding of token t + 1), the linear map nearest to the target's final hidden state at
t + 1. The attention heads that carry the embedding look at their own place only, which rotary embeddings allow: where query and
key are the same on a few fast pairs of dimensions, the score falls off with distance. The rest of the layer starts at zero
output. Knows rollouts and networks; does not know the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.models.torch_extra import torch
from headstart.train.network import EagleNetwork
from headstart.train.rollouts import Rollout

__all__ = ["fitted_start"]

_RIDGE = 1e-2  # of each input's variance
_PAIRS = 6  # fast rotary pairs that tell a head's own place from the others
_SHARPNESS = 43.0  # query times key on each of them; the nearest neighbour then gets under a hundredth of the weight

Matrix = NDArray[np.floating[Any]]


def fitted_start(network: EagleNetwork, rollouts: Sequence[Rollout], layers: Sequence[int], embeddings: Any, tokens: int) -> None:
    """Set the network's weights by least squares on about so many tokens of the rollouts' answers.

    `layers` are places within the stored features, whose last is the final hidden state."""
    c = network.config
    normed = embeddings * torch.rsqrt(embeddings.pow(2).mean(-1, keepdim=True) + c.rms_norm_eps)
    wide = c.num_features * c.target_hidden_size
    inner, outer, sums, count = _moments(rollouts, layers, normed, tokens)
    mean = sums / count
    spread = np.sqrt(np.maximum(np.diag(inner) / count - mean**2, 1e-8))
    fitted = np.linalg.solve(inner + _RIDGE * count * np.diag(spread**2), outer).T  # [hidden, inputs]
    explained = float(np.sqrt(np.einsum("oi,ij,oj->", fitted, inner, fitted) / count / c.hidden_size))
    from_features, from_embedding = fitted[:, :wide], fitted[:, wide:]
    # A direction of the embeddings in which every token is nearly one: what query and key of the copying heads are made of.
    ones = np.linalg.solve(inner[wide:, wide:] + 1e-4 * count * np.eye(c.hidden_size), sums[wide:])
    covariance = inner[wide:, wide:] / count - np.outer(mean[wide:], mean[wide:])
    left, right = _low_rank(from_embedding, covariance)
    copying = max(1, c.num_heads * 4 // 9) if c.num_kv_heads == c.num_heads else 0
    with torch.no_grad():
        network.feature_scale.copy_(torch.from_numpy(1 / spread[:wide]))
        if c.fc_bias:
            network.feature_shift.copy_(torch.from_numpy(mean[:wide]))
            network.fc.bias.copy_(torch.from_numpy(from_features @ mean[:wide]))
        network.fc.weight.copy_(torch.from_numpy(from_features * spread[:wide]))
        network.norm.weight.fill_(explained)
        network.midlayer.mlp.down_proj.weight.zero_()
        _set_copying_heads(network, copying, ones, left, right)


def _moments(rollouts: Sequence[Rollout], layers: Sequence[int], normed: Any, tokens: int) -> tuple[Matrix, Matrix, Matrix, int]:
    """Σ x xᵀ, Σ x yᵀ, Σ x and their number; x: hidden states at t and embedding of t + 1, y: final hidden state at t + 1."""
    inner: Any = 0.0
    outer: Any = 0.0
    sums: Any = 0.0
    count = 0
    for r in rollouts:
        if count >= tokens:
            break
        t = np.arange(r.num_prompt - 2, r.features.shape[1] - 1)
        t = t[t >= 0]
        seen = torch.from_numpy(r.features[list(layers)][:, t].swapaxes(0, 1).reshape(len(t), -1)).double()
        x = torch.cat((seen, normed[torch.from_numpy(r.tokens[t + 1].astype(np.int64))].double()), dim=1)
        y = torch.from_numpy(r.features[-1, t + 1]).double()
        inner, outer, sums, count = inner + x.T @ x, outer + x.T @ y, sums + x.sum(0), count + len(t)
    return inner.numpy(), outer.numpy(), sums.numpy(), count


def _low_rank(matrix: Matrix, covariance: Matrix) -> tuple[Matrix, Matrix]:
    """`matrix` as left @ right, the first columns of left carrying most of what it does to inputs of this covariance."""
    values, vectors = np.linalg.eigh(covariance)
    scale = np.sqrt(np.maximum(values, 1e-10))
    u, s, v = np.linalg.svd(matrix @ (vectors * scale))
    return u * s, v @ (vectors / scale).T


def _set_copying_heads(network: EagleNetwork, copying: int, ones: Matrix, left: Matrix, right: Matrix) -> None:
    """The first `copying` attention heads bring `left @ right` of their own place's embedding to the output; others nothing."""
    c, attention = network.config, network.midlayer.self_attn
    rows, hidden = copying * c.head_dim, c.hidden_size
    attention.o_proj.weight.zero_()
    for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
        projection.weight[:rows] = 0
    direction = torch.from_numpy(ones * _SHARPNESS**0.5).float()
    for head in range(copying):
        for pair in range(min(_PAIRS, c.head_dim // 2)):
            for projection in (attention.q_proj, attention.k_proj):
                projection.weight[head * c.head_dim + pair, :hidden] = direction
    attention.v_proj.weight[:rows, :hidden] = torch.from_numpy(right[:rows]).float()
    attention.o_proj.weight[:, :rows] = torch.from_numpy(left[:, :rows]).float()
