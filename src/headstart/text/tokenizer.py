"""`Tokenizer`: text and conversations → token ids, token ids → text, for any supported file.

It wraps the `tokenizers` library, so ids are those the model was trained on. Special tokens come from the file and from the
chat template only: what a person typed is text, even where it reads like a special token.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, final

from tokenizers import Tokenizer as Core
from tokenizers.processors import TemplateProcessing

from headstart.errors import InputError, ModelError
from headstart.text.chat import ChatTemplate
from headstart.text.folder import parts_from_folder
from headstart.text.gguf_tokenizer import parts_from_gguf
from headstart.text.literal import Literal
from headstart.text.parts import Parts

__all__ = ["Message", "Tokenizer"]

_BYTE_ZERO = "\0"
Message = Mapping[str, str]  # {"role": …, "content": …}


@final
class Tokenizer:
    """Immutable once made; threads may share one."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._core = parts.core
        self._added: dict[int, Any] = parts.core.get_added_tokens_decoder()
        self._special_ids = frozenset(place for place, token in self._added.items() if token.special)
        self._literal = Literal(parts.core)
        self._bytes: dict[int, bytes] = {}

    @staticmethod
    def from_folder(path: str | Path) -> Tokenizer:
        """The tokenizer of a Hugging Face folder. Raises ModelError if it has none in tokenizer.json form."""
        return Tokenizer(parts_from_folder(path))

    @staticmethod
    def from_gguf(path: str | Path) -> Tokenizer:
        """The tokenizer inside a GGUF file. Raises ModelError if it is broken or of a kind that is not supported."""
        return Tokenizer(parts_from_gguf(path))

    def save(self, folder: str | Path) -> None:
        """Write tokenizer.json, tokenizer_config.json and generation_config.json: `from_folder` then gives the same tokenizer."""
        core = Core.from_str(self._core.to_str())
        if self._parts.start_ids:
            names = [(str(self._name(token)), token) for token in self._parts.start_ids]
            core.post_processor = TemplateProcessing(
                single=[*(f"{name}:0" for name, _ in names), "$A:0"], pair=None, special_tokens=names
            )
        place = Path(folder)
        core.save(str(place / "tokenizer.json"))
        config = dict(self._parts.template_tokens)
        if self._parts.chat_template is not None:
            config["chat_template"] = self._parts.chat_template
        for name, value in (("tokenizer_config", config), ("generation_config", {"eos_token_id": sorted(self._parts.end_ids)})):
            (place / f"{name}.json").write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")

    # text → ids

    def encode(self, text: str) -> list[int]:
        """Ids of a raw prompt, after the start token where the file asks for one. All of `text` is literal.

        Raises InputError for a text with lone surrogates (it is not Unicode)."""
        _check_text(text, "prompt")
        ids: list[int] = self._core.encode(text, add_special_tokens=False).ids
        if not self._special_ids.isdisjoint(ids):
            ids = self._literal.encode(text)
        return [*self._parts.start_ids, *ids]

    def encode_more(self, text: str, *, begun: bool) -> list[int]:
        """Ids of a piece of a text, without a start token. `begun`: more text stands before it, so no space is put there."""
        if begun and self._parts.decoding.strip_start:
            # These vocabularies put a space before whatever they encode: let it be before a byte that joins no token.
            ids: list[int] = self._core.encode(_BYTE_ZERO + text, add_special_tokens=False).ids
            place = next((place for place, token in enumerate(ids) if self.token_bytes(token) == b"\0"), None)
            if place is not None and self._special_ids.isdisjoint(ids):
                return ids[place + 1 :]
        return self.encode(text)[len(self._parts.start_ids) :]

    def encode_chat(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> list[int]:
        """Ids of a conversation, rendered by the model's chat template; `add_generation_prompt` opens the model's turn.

        The template alone writes special tokens, a start token included. Raises InputError for malformed messages and for
        those the template refuses, ModelError if the model has no template."""
        template = self._template
        _check_messages(messages)
        if any(self._literal.touches(text) for message in messages for text in message.values()):
            return self._literal.encode_chat(
                messages, lambda hidden: template.render(hidden, add_generation_prompt=add_generation_prompt)
            )
        rendered = template.render(messages, add_generation_prompt=add_generation_prompt)
        ids: list[int] = self._core.encode(rendered, add_special_tokens=False).ids
        return ids

    @property
    def has_chat_template(self) -> bool:
        """Whether the model comes with a chat template."""
        return self._parts.chat_template is not None

    @cached_property
    def _template(self) -> ChatTemplate:
        if self._parts.chat_template is None:
            raise ModelError(f"{self._parts.source} has no chat template; use --raw, or a model tuned for chat")
        return ChatTemplate(self._parts.chat_template, self._parts.template_tokens, self._parts.source)

    # ids → text

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of token ids; special tokens have none, and bytes that are not UTF-8 become U+FFFD."""
        text = b"".join(map(self.token_bytes, tokens)).decode("utf-8", "replace")
        return self.strip_start(text)

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token stands for in text: none for special tokens and for ids without a token."""
        found = self._bytes.get(token)
        if found is None:
            name = None if token in self._special_ids else self._name(token)
            found = b"" if name is None else self._parts.decoding.to_bytes(name, added=token in self._added)
            self._bytes[token] = found
        return found

    def token_text(self, token: int) -> str:
        """One token to look at: its text, or the name of a special token; bytes of a part of a character are U+FFFD."""
        if token in self._special_ids:
            return str(self._added[token].content)
        return self.token_bytes(token).decode("utf-8", "replace")

    def strip_start(self, text: str) -> str:
        """`text`, the beginning of an answer, without the leading space SentencePiece vocabularies put there."""
        kept = text.lstrip(" ")
        return text[min(self._parts.decoding.strip_start, len(text) - len(kept)) :]

    # the vocabulary

    def tokens(self) -> tuple[str | None, ...]:
        """[vocab_size] the vocabulary string of each id, None for ids without a token."""
        return self._tokens

    @cached_property
    def _tokens(self) -> tuple[str | None, ...]:
        by_id: dict[int, str] = {place: text for text, place in self._core.get_vocab(with_added_tokens=True).items()}
        return tuple(by_id.get(place) for place in range(max(by_id, default=-1) + 1))

    @property
    def vocab_size(self) -> int:
        """Highest id that has a token, plus one. A model's rows may be wider (padding)."""
        return len(self._tokens)

    def frequent(self, count: int) -> list[int]:
        """Ids of the `count` most frequent tokens, as far as the vocabulary tells, and of every special token; increasing.

        Byte-pair vocabularies number their tokens in order of merging, the most frequent pair of the training text first: so
        lower ids are the more frequent ones; but for single bytes and letters, which some number last: they are taken first."""
        ordinary = [token for token, name in enumerate(self._tokens) if name is not None and token not in self._special_ids]
        single = [token for token in ordinary if len(self.token_bytes(token)) == 1]
        first = dict.fromkeys([*single, *ordinary])
        return sorted({*list(first)[:count], *(token for token in self._special_ids if token < self.vocab_size)})

    @property
    def start_ids(self) -> tuple[int, ...]:
        """What `encode` puts before a raw prompt."""
        return self._parts.start_ids

    @property
    def end_ids(self) -> frozenset[int]:
        """Ids that end an answer."""
        return self._parts.end_ids

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids of special tokens: they have no text."""
        return self._special_ids

    def _name(self, token: int) -> str | None:
        name: str | None = self._core.id_to_token(token) if 0 <= token < 2**32 else None
        return name


def _check_text(text: str, name: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        place = f"index {error.start}"
        raise InputError(f"`{name}` must be Unicode text, got a lone surrogate {text[error.start]!r} at {place}") from None


def _check_messages(messages: Sequence[Message]) -> None:
    """Raises InputError unless `messages` are one or more {role, content} of texts."""
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise InputError(f"`messages` must be a list of one or more {{'role', 'content'}}, got {messages!r}")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise InputError(f"`messages[{index}]` must have a role and a content, got {message!r}")
        for name in ("role", "content"):
            if name not in message:
                raise InputError(
                    f"`messages[{index}]` must have a {name!r}, got only {', '.join(map(repr, message)) or 'nothing'}"
                )
            if not isinstance(message[name], str):
                raise InputError(f"`messages[{index}].{name}` must be a text, got {message[name]!r}")
            _check_text(message[name], f"messages[{index}].{name}")
        if len(message) > 2:
            extra = next(name for name in message if name not in ("role", "content"))
            raise InputError(f"`messages[{index}]` has {extra!r}, which is not supported; only 'role' and 'content' are")
