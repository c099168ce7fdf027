"""A plan's choice in the words of other engines: vLLM's `speculative_config`, llama.cpp's flags, transformers' arguments.

Names are those of vLLM 0.20, of llama-server since its --spec options (May 2026) and of transformers 5. What an engine has no
word for is None. Lengths were chosen by this machine's costs under this engine; another engine's optimum may differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from headstart.plan.predict import Candidate

__all__ = ["export"]

_MIN_MATCH = 2  # tokens our n-gram drafter looks up at least
_MAX_MATCH = 32


def export(choice: Candidate, methods: Mapping[str, str] = MappingProxyType({})) -> dict[str, Any]:
    """`{vllm, llama_cpp, transformers}` for one candidate; of a tree, the chain of its depth.

    `methods`: of drafters with heads, vLLM's word for their kind: eagle, eagle3 or medusa."""
    kind, _, reference = choice.drafter.partition(":")
    if choice.drafter == "none":
        return {"vllm": None, "llama_cpp": ["--spec-type", "none"], "transformers": {}}
    if kind == "model" and "+" not in reference:
        return _model(reference, choice.gamma)
    if choice.drafter in ("ngram", "auto"):
        return _lookup(choice.gamma)
    if kind in ("eagle", "medusa") and "+" not in reference and choice.drafter in methods:
        # vLLM wants the folder; a head of the package's by name is one once it is looked up.
        heads = {"method": methods[choice.drafter], "model": reference, "num_speculative_tokens": choice.gamma}
        return {"vllm": heads, "llama_cpp": None, "transformers": None}
    if choice.drafter == "suffix":
        return {"vllm": {"method": "suffix", "num_speculative_tokens": choice.gamma}, "llama_cpp": None, "transformers": None}
    return {"vllm": None, "llama_cpp": None, "transformers": None}


def _model(reference: str, gamma: int) -> dict[str, Any]:
    return {
        "vllm": {"method": "draft_model", "model": reference, "num_speculative_tokens": gamma},
        "llama_cpp": ["--spec-type", "draft-simple", "--spec-draft-model", reference, "--spec-draft-n-max", str(gamma)],
        "transformers": {
            "assistant_model": reference,  # a reference: the argument itself takes the loaded model
            "num_assistant_tokens": gamma,
            "num_assistant_tokens_schedule": "constant",
            "assistant_confidence_threshold": 0.0,  # else drafts end early where the assistant is unsure
        },
    }


def _lookup(gamma: int) -> dict[str, Any]:
    return {
        "vllm": {
            "method": "ngram",
            "num_speculative_tokens": gamma,
            "prompt_lookup_min": _MIN_MATCH,
            "prompt_lookup_max": _MAX_MATCH,
        },
        "llama_cpp": [
            *("--spec-type", "ngram-simple"),
            *("--spec-ngram-simple-size-n", str(_MIN_MATCH)),
            *("--spec-ngram-simple-size-m", str(gamma)),
        ],
        "transformers": {"prompt_lookup_num_tokens": gamma},
    }
