"""`Parts` from the metadata of a GGUF file: the tokenizer the model was trained with, rebuilt.

A GGUF file names its way of splitting text (`tokenizer.ggml.pre`) instead of carrying it. The table below restores, for each
name, the pre-tokenizer of the original tokenizer.json; a name it does not know is refused, since any guess would feed
the model other tokens than it was trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from headstart.errors import ModelError
from headstart.text.decoding import Decoding
from headstart.text.gguf import read_metadata
from headstart.text.parts import Parts

__all__ = ["parts_from_gguf"]

# tokenizer.ggml.token_type
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 1, 2, 3, 4, 5

_LONGEST_TOKEN = 1024  # characters; real ones stay under 300

_WAY_OUT = "use the model's Hugging Face folder (with tokenizer.json) instead"

# Markers that end a turn or a document, whatever the keys of the file say: many files name only one of theirs.
_END_MARKERS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<end_of_utterance>",
)
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


@dataclass(frozen=True, kw_only=True)
class _Splitting:
    """How one family of byte-level tokenizers cuts text before merging."""

    cut: Callable[[], list[Any]]  # pre-tokenizers, before the byte-level step
    gpt2_words: bool = True  # the byte-level step also cuts by the words of GPT-2
    nfc: bool = False
    ignore_merges: bool = False  # a piece that is a token as a whole is that token
    starts: bool = False  # a start token by default


def _isolate(*patterns: str) -> Callable[[], list[Any]]:
    return lambda: [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in patterns]


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CL100K_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

_GPT2 = _Splitting(cut=list)
_DIGITS = _Splitting(cut=lambda: [pre_tokenizers.Digits(individual_digits=True)])
_LLAMA3 = _Splitting(
    cut=_isolate(f"{_CONTRACTIONS}|{_CL100K_WORDS % '{1,3}'}"), gpt2_words=False, ignore_merges=True, starts=True
)
_SPLITTINGS = {
    "gpt-2": _GPT2,
    "phi-2": _GPT2,
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "qwen2": _Splitting(cut=_isolate(f"{_CONTRACTIONS}|{_CL100K_WORDS % ''}"), gpt2_words=False, nfc=True),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    # What llama.cpp does with files that name nothing.
    "default": _Splitting(cut=_isolate(r"[\p{P}\$\+<=>\^~\|]+", _GPT2_WORDS, r"\p{N}+", r"[0-9][0-9][0-9]"), gpt2_words=False),
}


def parts_from_gguf(path: str | Path) -> Parts:
    """The tokenizer a GGUF file describes. Raises ModelError if the file is broken or its tokenizer is not supported."""
    fields = _Fields(path)
    kind = fields.get("ggml.model", str)
    if kind == "gpt2":
        core, starts = _byte_level(fields)
    elif kind == "llama":
        core, starts = _sentencepiece(fields), True
    else:
        raise ModelError(f"{fields.source}: tokenizer model {kind!r} is not supported ('gpt2' and 'llama' are); {_WAY_OUT}")
    _add_markers(core, fields)
    start = fields.token_id("bos_token_id")
    starts = fields.get("ggml.add_bos_token", bool, starts)
    return Parts(
        source=fields.source,
        core=core,
        decoding=Decoding.of(core, fields.source),
        start_ids=(start,) if starts and start is not None else (),
        end_ids=_end_ids(fields),
        chat_template=fields.get("chat_template", str),
        template_tokens=_template_tokens(fields),
    )


class _Fields:
    """The keys `tokenizer.*` of a file, each checked for its type when it is asked for."""

    def __init__(self, path: str | Path) -> None:
        self.source = str(path)
        self._values = read_metadata(path)
        self.tokens: list[str] = self.list_of("ggml.tokens", str)
        if not self.tokens:
            raise ModelError(f"{self.source} carries no tokenizer; {_WAY_OUT}")
        self.types: list[int] = self.list_of("ggml.token_type", int) or [_NORMAL] * len(self.tokens)
        if len(self.types) != len(self.tokens):
            raise self.unusable(f"{len(self.tokens)} tokens but {len(self.types)} token types")
        longest = max(map(len, self.tokens))
        if longest > _LONGEST_TOKEN:
            raise self.unusable(f"it has a token of {longest} characters")

    def get(self, key: str, kind: type[Any], default: Any = None) -> Any:
        """The value of `tokenizer.<key>`, `default` if the file has none."""
        value = self._values.get(f"tokenizer.{key}")
        if value is None:
            return default
        if type(value) is not kind:
            raise self.unusable(f"tokenizer.{key} is a {type(value).__name__}, not a {kind.__name__}")
        return value

    def list_of(self, key: str, kind: type[Any]) -> list[Any]:
        """A list, empty if the file has none."""
        values: list[Any] = self.get(key, list, [])
        if values and type(values[0]) is not kind:  # arrays of GGUF files hold one type
            raise self.unusable(f"tokenizer.{key} holds {type(values[0]).__name__}, not {kind.__name__}")
        return values

    def token_id(self, key: str) -> int | None:
        """The id a key names; None where the file names none, or one that is no token."""
        value: int | None = self.get(f"ggml.{key}", int)
        return value if value is not None and 0 <= value < len(self.tokens) else None

    def of_type(self, *types: int) -> list[str]:
        """The tokens of these types, by id."""
        return [token for token, type_ in zip(self.tokens, self.types, strict=True) if type_ in types]

    def vocabulary(self) -> dict[str, int]:
        """String → id; rows that only pad the embedding matrix are no tokens. Of two equal strings the first counts."""
        vocab: dict[str, int] = {}
        for place, (token, type_) in enumerate(zip(self.tokens, self.types, strict=True)):
            if not (type_ == _UNUSED and token.startswith("[PAD")):
                vocab.setdefault(token, place)
        return vocab

    def unusable(self, why: str) -> ModelError:
        return ModelError(f"{self.source} is not a usable GGUF file: {why}; fetch it again")


def _byte_level(fields: _Fields) -> tuple[Tokenizer, bool]:
    """The tokenizer, and whether its family begins a prompt with the start token."""
    name = fields.get("ggml.pre", str, "default")
    splitting = _SPLITTINGS.get(name)
    if splitting is None:
        known = ", ".join(_SPLITTINGS)
        raise ModelError(f"{fields.source}: pre-tokenizer {name!r} is not supported (known: {known}); {_WAY_OUT}")
    merges = [tuple(merge.split(" ")) for merge in fields.list_of("ggml.merges", str)]
    core = _core(fields, merges=merges, ignore_merges=splitting.ignore_merges)
    if splitting.nfc:
        core.normalizer = normalizers.NFC()
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=splitting.gpt2_words)
    core.pre_tokenizer = pre_tokenizers.Sequence([*splitting.cut(), last])
    core.decoder = decoders.ByteLevel()
    return core, splitting.starts


def _sentencepiece(fields: _Fields) -> Tokenizer:
    """SentencePiece BPE: merges follow from the scores; a byte that no token covers falls back to `<0x..>`."""
    scores = fields.list_of("ggml.scores", float)
    if len(scores) != len(fields.tokens):
        raise fields.unusable("a 'llama' tokenizer needs one score a token")
    unknown = next(iter(fields.of_type(_UNKNOWN)), None)
    merges = _merges_from_scores(fields.tokens, fields.types, scores)
    core = _core(fields, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    prefix = fields.get("ggml.add_space_prefix", bool, True)
    spaces = normalizers.Replace(" ", "▁")
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if prefix else spaces
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    core.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return core


def _merges_from_scores(tokens: list[str], types: Sequence[int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every way of making a token from two others, best score first. Only normal tokens are made by merging, or merged."""
    score_of = {token: score for token, type_, score in zip(tokens, types, scores, strict=True) if type_ == _NORMAL}
    merges: list[tuple[str, str]] = []
    for _, equals in groupby(sorted(score_of, key=score_of.__getitem__, reverse=True), score_of.__getitem__):
        pairs = [
            (token[:cut], token[cut:])
            for token in equals
            for cut in range(1, len(token))
            if token[:cut] in score_of and token[cut:] in score_of
        ]
        # Ties in the order transformers writes them into tokenizer.json: longer left part, then longer right part first.
        merges += sorted(pairs, key=lambda pair: (-len(pair[0]), -len(pair[1]))) if len(pairs) > 1 else pairs
    return merges


def _core(fields: _Fields, **arguments: Any) -> Tokenizer:
    try:
        return Tokenizer(models.BPE(vocab=fields.vocabulary(), **arguments))
    except Exception as error:  # the Rust side raises bare Exception, e.g. for a merge that makes no token
        raise fields.unusable(f"its tokenizer does not hold together ({error})") from None


def _add_markers(core: Tokenizer, fields: _Fields) -> None:
    """Tokens that are looked for in the text before anything else: special ones, and those that users of the model defined."""
    core.add_special_tokens([AddedToken(token, normalized=False) for token in fields.of_type(_UNKNOWN, _CONTROL)])
    # A run of spaces (▁▁▁) is found once spaces are written as ▁; a normaliser that adds a prefix would add it to the run too.
    prefixed = isinstance(core.normalizer, normalizers.Sequence)
    defined = fields.of_type(_USER_DEFINED)
    core.add_tokens([AddedToken(token, normalized="▁" in token and not prefixed) for token in defined])


def _end_ids(fields: _Fields) -> frozenset[int]:
    ends = {fields.token_id(key) for key in _END_KEYS}
    control = {token: place for place, token in enumerate(fields.tokens) if fields.types[place] == _CONTROL}
    # In the harmony format <|end|> closes one message of a turn, and <|return|> the turn.
    skipped = {"<|end|>"} if "<|return|>" in control else set()
    ends |= {control.get(marker) for marker in _END_MARKERS if marker not in skipped}
    return frozenset(end for end in ends if end is not None)


def _template_tokens(fields: _Fields) -> dict[str, str]:
    # The key of the separator is misspelt in the format itself.
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding", "sep_token": "seperator"}
    found = {name: fields.token_id(f"{key}_token_id") for name, key in names.items()}
    return {name: fields.tokens[place] for name, place in found.items() if place is not None}
