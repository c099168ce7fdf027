"""How positions are turned into angles, as config.json says it, in the words of GGUF metadata.

Knows the plain kind, linear, llama3 and yarn, in the two forms configurations have had: `rope_theta` with `rope_scaling`, and
`rope_parameters`. Other kinds stretch positions as a sequence grows, or turn them by something else: refused by name.
"""

from __future__ import annotations

import math
from typing import Any

from headstart.checkpoints import llama3_factors
from headstart.models.config_keys import Keys

__all__ = ["rope_metadata"]

_KINDS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor", "truncate"),
}


def rope_metadata(config: Keys, architecture: str, head_dim: int, context: int) -> dict[str, Any]:
    """GGUF keys without the architecture. Raises ModelError for what is not known."""
    gemma = architecture == "gemma3"
    plain = config.real("rope_theta", 1e6 if gemma else 1e4)
    old, new = config.table("rope_scaling"), config.table("rope_parameters")
    if old and new:
        config.refuse("`rope_scaling` and `rope_parameters`, and which counts is not known")
    found: dict[str, Any] = {}
    if gemma:
        local = config.real("rope_local_base_freq", 1e4)
        if new and set(new.names()) <= {"full_attention", "sliding_attention"}:
            old, windowed = new.table("full_attention"), new.table("sliding_attention")
            if windowed:
                local = windowed.real("rope_theta", local)
                if windowed.text("rope_type", windowed.text("type", "default")) != "default":
                    windowed.refuse("a `rope_type` other than default for windowed layers")
                windowed.only("partial_rotary_factor", 1.0)
                windowed.finish()
        elif new:
            new.refuse("no parameters for full_attention and sliding_attention")
        found["rope.freq_base_swa"] = local
    else:
        old = old or new
    if not old:
        return found | {"rope.freq_base": plain}
    return found | _scaled(old, old.real("rope_theta", plain), head_dim, context)


def _scaled(rope: Keys, base: float, head_dim: int, context: int) -> dict[str, Any]:
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind not in _KINDS:
        rope.refuse(f"`rope_type` {kind!r:.60}, and {', '.join(_KINDS)} are known")
    rope.only("partial_rotary_factor", 1.0)
    found: dict[str, Any] = {"rope.freq_base": base}
    if kind != "default":
        factor = rope.real("factor", None, least=1.0)
        original = rope.whole("original_max_position_embeddings", context)
    if kind == "linear":
        found |= {"rope.scaling.type": "linear", "rope.scaling.factor": factor}
    elif kind == "llama3":
        low, high = rope.real("low_freq_factor", None), rope.real("high_freq_factor", None)
        found["rope.frequency_factors"] = llama3_factors(base, head_dim, factor, low, high, original)
    elif kind == "yarn":
        rope.only("truncate", True)
        found |= {"rope.scaling.type": "yarn", "rope.scaling.factor": factor, "rope.scaling.original_context_length": original}
        found |= {
            "rope.scaling.yarn_beta_fast": rope.real("beta_fast", 32.0),
            "rope.scaling.yarn_beta_slow": rope.real("beta_slow", 1.0),
        }
        usual = 0.1 * math.log(factor) + 1.0  # what the engine multiplies by itself
        found["rope.scaling.attn_factor"] = rope.real("attention_factor", usual if factor > 1 else 1.0) / usual
    rope.finish(known=("original_max_position_embeddings",))
    return found
