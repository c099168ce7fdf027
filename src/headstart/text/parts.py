"""`Parts`: what a file says about its tokenizer, whichever kind of file it was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import tokenizers

from headstart.text.decoding import Decoding

__all__ = ["Parts"]


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The core tokenizer and the facts around it. `source` names the file in errors."""

    source: str
    core: tokenizers.Tokenizer
    decoding: Decoding
    start_ids: tuple[int, ...] = ()  # put before a raw prompt
    end_ids: frozenset[int] = frozenset()
    chat_template: str | None = None
    template_tokens: Mapping[str, str] = field(default_factory=dict)  # bos_token, eos_token, …: what the template may write
