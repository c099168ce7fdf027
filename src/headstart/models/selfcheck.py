"""The self-check at load: a network whose answers change with rewinds, packing or caching is refused.

A configuration says what a model claims to be; this says what it does. Two short sequences are scored once by transformers
alone, without any cache, and once by us, in pieces, together, with a rewind in between. It costs four small passes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headstart.errors import ModelError
from headstart.interfaces import Ask
from headstart.models.attention import ATTENTION
from headstart.models.torch_extra import torch

if TYPE_CHECKING:
    from headstart.models.transformers import TransformersModel

__all__ = ["check"]

# Root mean square of the differences of logits over that of the logits' spread. Rounding stays several times below; a key
# seen by the wrong token does not.
_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.1, "float16": 0.03}

_NUM_TOKENS = 5


def check(model: TransformersModel, name: str) -> None:
    """Put `model` under our attention. Raises ModelError naming `name` unless it then answers as transformers does alone."""
    tokens = np.random.default_rng(0).integers(0, model.vocab_size, (2, _NUM_TOKENS))
    reference = _alone(model.network, tokens)
    if reference.shape[-1] != model.vocab_size:
        raise ModelError(f"{name!r} answers with {reference.shape[-1]} logits, its configuration says {model.vocab_size} tokens")
    model.network.set_attn_implementation(ATTENTION)
    try:
        answers = _in_pieces(model, tokens)
    except (LookupError, AttributeError, TypeError, RuntimeError) as failure:
        raise _unsupported(model, name, f"{type(failure).__name__}: {failure}") from None
    windows = _declared_windows(model)
    if windows is not None and windows != model.windows:
        raise _unsupported(model, name, "its sliding windows are not those of its configuration")
    spread = reference - reference.mean(axis=-1, keepdims=True)
    error = float(np.sqrt(np.mean((answers - reference) ** 2) / max(np.mean(spread**2), 1e-30)))
    if not error <= _TOLERANCE[model.dtype]:
        raise _unsupported(model, name, f"scores differ by {error:.1%} from a pass without a cache")


def _declared_windows(model: TransformersModel) -> dict[int, int | None] | None:
    """layer → sliding window, where the configuration tells layers apart. Too long to be seen in a short check."""
    text = model.config.get_text_config()
    types = getattr(text, "layer_types", None)
    if types is None:
        return None
    return {layer: text.sliding_window if kind == "sliding_attention" else None for layer, kind in enumerate(types)}


def _unsupported(model: TransformersModel, name: str, what: str) -> ModelError:
    kind = type(model.network).__name__
    return ModelError(f"{name!r} is a {kind}, which does not roll back and pack as it should ({what}); it is not supported")


def _alone(network: Any, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
    """[2, tokens, vocab]: both sequences by transformers alone."""
    with torch.inference_mode():
        logits = network(input_ids=torch.from_numpy(tokens).to(network.device), use_cache=False).logits
    answers: NDArray[np.float32] = logits.to(device="cpu", dtype=torch.float32).numpy()
    return answers


def _in_pieces(model: TransformersModel, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
    """The same by us: two and three tokens together; two that are taken back; the rest together."""
    first, second = model.open(), model.open()
    one, two = tokens.tolist()
    begun = model.score([Ask(cache=first, tokens=one[:2]), Ask(cache=second, tokens=two[:3])])
    model.score([Ask(cache=first, tokens=two[3:], num_logits=0)])
    first.rewind(2)
    rest = model.score([Ask(cache=first, tokens=one[2:]), Ask(cache=second, tokens=two[3:])])
    return np.stack([np.concatenate([a.logits, b.logits]) for a, b in zip(begun, rest, strict=True)])
