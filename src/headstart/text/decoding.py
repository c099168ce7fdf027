"""One token → its bytes.

Text is then UTF-8 over the joined bytes, which is the same for any way of cutting the tokens into pieces. Two families are
read: byte-level vocabularies (every byte has a printable stand-in) and SentencePiece ones (`▁` for a space, `<0x0A>` for a
byte). Anything else is refused by name. The clean-up of spaces that some libraries do for display is not done here.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import tokenizers

from headstart.errors import ModelError

__all__ = ["Decoding"]

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_of_stand_in() -> dict[str, int]:
    """The byte-level alphabet of GPT-2: printable Latin-1 stands for itself, the other bytes for 256, 257, … in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


_STAND_INS = _byte_of_stand_in()


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """How vocabulary strings become bytes. `strip_start`: leading spaces that the whole text loses."""

    byte_level: bool = False
    byte_fallback: bool = False
    replacements: tuple[tuple[str, str], ...] = ()
    strip_start: int = 0

    @staticmethod
    def of(core: tokenizers.Tokenizer, source: str) -> Decoding:
        """The decoding that `core` describes. Raises ModelError for a kind that is not read here."""
        steps: list[dict[str, Any]] = [] if core.decoder is None else [json.loads(core.decoder.__getstate__())]
        if steps and steps[0]["type"] == "Sequence":
            steps = steps[0]["decoders"]
        byte_level = byte_fallback = False
        replacements: list[tuple[str, str]] = []
        strip_start = 0
        for step in steps:
            kind = step["type"]
            if kind == "ByteLevel":
                byte_level = True
            elif kind == "ByteFallback":
                byte_fallback = True
            elif kind == "Replace" and "String" in step["pattern"]:
                replacements.append((step["pattern"]["String"], step["content"]))
            elif kind == "Metaspace":
                replacements.append((step["replacement"], " "))
                strip_start = 0 if step.get("prepend_scheme") == "never" else 1
            elif kind == "Strip" and step["content"] == " " and step["stop"] == 0:
                strip_start = step["start"]
            elif kind != "Fuse":
                raise _unreadable(source, kind)
        if not (byte_level or byte_fallback or replacements):
            raise _unreadable(source, "none")
        return Decoding(
            byte_level=byte_level, byte_fallback=byte_fallback, replacements=tuple(replacements), strip_start=strip_start
        )

    def to_bytes(self, token: str, *, added: bool) -> bytes:
        """The bytes of a vocabulary string; `added` tokens are stored as plain text even in byte-level vocabularies."""
        if self.byte_level:
            try:
                return token.encode() if added else bytes([_STAND_INS[character] for character in token])
            except KeyError:
                return token.encode()
        if self.byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        for old, new in self.replacements:
            token = token.replace(old, new)
        return token.encode()


def _unreadable(source: str, kind: str) -> ModelError:
    return ModelError(
        f"{source}: a tokenizer with decoder {kind!r} is not supported; byte-level and SentencePiece-style tokenizers are"
    )
