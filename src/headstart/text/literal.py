"""Text that must stay text: `<|im_end|>` typed by a person is eight characters, never the end of a turn.

The trick is a second tokenizer, made when first needed: the same one, but its special tokens are called by private-use
characters that the text at hand does not contain. To it, `<|im_end|>` is nothing special. In a conversation, the template
writes special tokens too, and those are meant: messages are rendered with their special texts hidden, what then still reads
like a special token is the template's own and gets its private name, and the hidden texts come back as plain text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import tokenizers

from headstart.errors import InputError

__all__ = ["Literal"]

_PRIVATE = range(0xF0000, 0xFFFFE)  # supplementary private use area A: assigned to nobody


class Literal:
    """Encoding with the special texts of `core` taken literally."""

    def __init__(self, core: tokenizers.Tokenizer) -> None:
        self._core = core
        added = core.get_added_tokens_decoder().values()
        self._specials = sorted((token.content for token in added if token.special), key=lambda text: (-len(text), text))
        self._normalized = any(token.special and token.normalized for token in added)
        self._made: tuple[int, Any] | None = None

    def touches(self, text: str) -> bool:
        """Whether `text` has a special text in it, or the beginning or end of one at its edge."""
        if self._cut(text) != [text]:
            return True
        # Some vocabularies look for special texts after normalising, which can make one out of other characters.
        normalizer = self._core.normalizer if self._normalized else None
        return normalizer is not None and len(self._cut(normalizer.normalize_str(text))) > 1

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, without special tokens."""
        ids: list[int] = self._renamed(self._free_block(text, 0)).encode(text, add_special_tokens=False).ids
        return ids

    def encode_chat(
        self, messages: Sequence[Mapping[str, str]], render: Callable[[Sequence[Mapping[str, str]]], str]
    ) -> list[int]:
        """Ids of the rendered conversation: special tokens of the template, literal text of the messages."""
        pieces = [[self._cut(message[name]) for name in ("role", "content")] for message in messages]
        everything = "".join(text for message in messages for text in message.values())
        hidden_texts = sorted({text for message in pieces for cut in message for text in cut[1::2]})
        start = self._free_block(everything, len(hidden_texts))
        places = {text: chr(start + len(self._specials) + place) for place, text in enumerate(hidden_texts)}

        def hide(cut: list[str]) -> str:
            return "".join(places[text] if place % 2 else text for place, text in enumerate(cut))

        hidden = [{"role": hide(role), "content": hide(content)} for role, content in pieces]
        names = {text: chr(start + place) for place, text in enumerate(self._specials)}
        rendered = self._whole.sub(lambda match: names[match[0]], render(hidden))
        literal = rendered.translate({ord(place): text for text, place in places.items()})
        ids: list[int] = self._renamed(start).encode(literal, add_special_tokens=False).ids
        return ids

    def _cut(self, text: str) -> list[str]:
        """[plain, special text, plain, special text, …, plain], joined again `text`.

        The beginning of a special text at the very end counts as one, and the end of one at the very start: a template could
        put two messages side by side."""
        if not self._specials:
            return [text]
        first = self._edge(text, self._tails, lambda length: text[:length])
        last = self._edge(text[first:], self._heads, lambda length: text[len(text) - length :])
        middle = text[first : len(text) - last]
        cut, place = ["", text[:first]] if first else [], 0
        for match in self._whole.finditer(middle):
            cut += [middle[place : match.start()], match[0]]
            place = match.end()
        cut.append(middle[place:])
        return [*cut, text[len(text) - last :], ""] if last else cut

    def _edge(self, text: str, known: frozenset[str], edge: Callable[[int], str]) -> int:
        """Length of the longest edge of `text` that is in `known`; 0 for none."""
        longest = min(len(text), len(self._specials[0]) - 1)
        return next((length for length in range(longest, 0, -1) if edge(length) in known), 0)

    @cached_property
    def _whole(self) -> re.Pattern[str]:
        """Any special text, the longest first, as `core` looks for them."""
        return re.compile("|".join(map(re.escape, self._specials)) or "(?!)")

    @cached_property
    def _heads(self) -> frozenset[str]:
        return frozenset(text[:length] for text in self._specials for length in range(1, len(text)))

    @cached_property
    def _tails(self) -> frozenset[str]:
        return frozenset(text[length:] for text in self._specials for length in range(1, len(text)))

    def _free_block(self, text: str, extra: int) -> int:
        """The first private character of a run, long enough for the special names and `extra`, that `text` stays out of."""
        size = len(self._specials) + extra
        taken = {ord(character) for character in text if ord(character) in _PRIVATE}
        for start in range(_PRIVATE.start, _PRIVATE.stop - size, max(size, 1)):
            if not any(place in taken for place in range(start, start + size)):
                return start
        raise InputError("`prompt` uses up all private-use characters; remove some of those between U+F0000 and U+FFFFD")

    def _renamed(self, start: int) -> Any:
        """The core tokenizer, its special tokens called by the characters from `start` on."""
        if self._made is None or self._made[0] != start:
            names = {text: chr(start + place) for place, text in enumerate(self._specials)}
            description = _rename(json.loads(self._core.to_str()), names)
            self._made = (start, tokenizers.Tokenizer.from_str(json.dumps(description)))
        return self._made[1]


def _rename(description: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """A tokenizer.json with its special tokens renamed wherever they are named."""
    for token in description["added_tokens"]:
        if token["special"]:
            token["content"] = names[token["content"]]
    model = description["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {names.get(text, text): place for text, place in model["vocab"].items()}
    else:  # Unigram: [text, score] by id
        model["vocab"] = [[names.get(text, text), score] for text, score in model["vocab"]]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    if "merges" in model:
        pairs = [merge if isinstance(merge, list) else merge.split(" ") for merge in model["merges"]]
        model["merges"] = [pair for pair in pairs if names.keys().isdisjoint((*pair, "".join(pair)))]
    description["post_processor"] = None
    return description
