"""Small random heads of every kind, as descriptions in memory."""

from __future__ import annotations

import numpy as np

from headstart.checkpoints import EagleConfig, EagleHead, MedusaHead, Tensor

VOCAB, HIDDEN, TARGET_HIDDEN, DRAFT = 23, 16, 12, 9


def tensor(rng: np.random.Generator, shape: tuple[int, ...], dtype: str = "F32") -> Tensor:
    """Random values of a size that keeps rows away from uniform; bfloat16 as the upper half of float32."""
    values = (rng.normal(size=shape) * 0.5 + (1.0 if len(shape) == 1 else 0.0)).astype(np.float32)
    if dtype == "BF16":
        return Tensor((values.view(np.uint32) >> 16).astype(np.uint16), "BF16")
    return Tensor.of(values.astype({"F32": np.float32, "F16": np.float16}[dtype]))


def eagle(generation: int, *, dtype: str = "F32", seed: int = 0, own_head: bool = True, **changed: object) -> EagleHead:
    """An EAGLE head; `changed` are fields of its config."""
    rng = np.random.default_rng(seed)
    cut = {"draft_vocab_size": DRAFT, "target_hidden_size": TARGET_HIDDEN} if generation == 3 else {}
    fields = {
        "generation": generation, "hidden_size": HIDDEN, "target_hidden_size": HIDDEN, "intermediate_size": 20,
        "num_heads": 4, "num_kv_heads": 2, "head_dim": 6, "vocab_size": VOCAB, "draft_vocab_size": VOCAB,
        "num_features": 1 if generation == 1 else 3, **cut, **changed,
    }  # fmt: skip
    config = EagleConfig(**fields)
    weights = {name: tensor(rng, shape, dtype) for name, shape in config.shapes().items()}
    if generation == 3 and own_head:
        weights["lm_head.weight"] = tensor(rng, (config.draft_vocab_size, HIDDEN), dtype)
    ids = None
    if config.draft_vocab_size != VOCAB:
        ids = np.sort(rng.permutation(VOCAB)[: config.draft_vocab_size]).astype(np.int64)
    return EagleHead(config=config, weights=weights, token_ids=ids)


def medusa(*, num_heads: int = 3, num_layers: int = 2, cut: bool = False, dtype: str = "F32", seed: int = 0) -> MedusaHead:
    """Medusa heads."""
    rng = np.random.default_rng(seed)
    drafted = DRAFT if cut else VOCAB
    weights = {}
    for head in range(num_heads):
        for layer in range(num_layers):
            weights[f"{head}.{layer}.linear.weight"] = tensor(rng, (HIDDEN, HIDDEN), dtype)
            weights[f"{head}.{layer}.linear.bias"] = tensor(rng, (HIDDEN,), dtype)
        weights[f"{head}.{num_layers}.weight"] = tensor(rng, (drafted, HIDDEN), dtype)
    return MedusaHead(
        num_heads=num_heads, num_layers=num_layers, hidden_size=HIDDEN, vocab_size=VOCAB, draft_vocab_size=drafted,
        weights=weights, token_ids=np.sort(rng.permutation(VOCAB)[:DRAFT]).astype(np.int64) if cut else None,
    )  # fmt: skip


class Vocabulary:
    """A target's vocabulary matrices."""

    def __init__(self, hidden: int = HIDDEN, seed: int = 5) -> None:
        rng = np.random.default_rng(seed)
        self.embed = rng.normal(size=(VOCAB, hidden)).astype(np.float32)
        self.head = rng.normal(size=(VOCAB, hidden)).astype(np.float32)

    def embeddings(self, tokens):
        return self.embed[np.asarray(tokens)]

    def head_rows(self, tokens):
        return self.head[np.asarray(tokens)]
