"""`Parts` from the metadata of a GGUF file: the tokenizer the model was trained with, rebuilt.

A GGUF file names its way of splitting text (`tokenizer.ggml.pre`) instead of carrying it. The table below restores, for each
name, the pre-tokenizer of the original tokenizer.json; a name it does not know is refused, since any guess would feed
the model other tokens than it was trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from headstart.errors import ModelError
from headstart.text.decoding import Decoding
from headstart.text.gguf import read_metadata
from headstart.text.parts import Parts

__all__ = ["parts_from_gguf"]

# tokenizer.ggml.token_type
_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 2, 3, 4, 5, 6

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
    path = Path(path)
    metadata = {
        key.removeprefix("tokenizer."): value for key, value in read_metadata(path).items() if key.startswith("tokenizer.")
    }
    source = str(path)
    kind = metadata.get("ggml.model")
    tokens = metadata.get("ggml.tokens")
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens[:1]):
        raise ModelError(f"{source} carries no tokenizer; {_WAY_OUT}")
    types = metadata.get("ggml.token_type") or [1] * len(tokens)
    if len(types) != len(tokens):
        raise ModelError(f"{source} is not a usable GGUF file: {len(tokens)} tokens but {len(types)} token types")
    if kind == "gpt2":
        core, starts = _byte_level(metadata, tokens, types, source)
    elif kind == "llama":
        core, starts = _sentencepiece(metadata, tokens, types, source), True
    else:
        raise ModelError(f"{source}: tokenizer model {kind!r} is not supported ('gpt2' and 'llama' are); {_WAY_OUT}")
    _add_markers(core, tokens, types)
    start = _token_id(metadata, "bos_token_id", tokens)
    starts = bool(metadata.get("ggml.add_bos_token", starts))
    return Parts(
        source=source,
        core=core,
        decoding=Decoding.of(core, source),
        start_ids=(start,) if starts and start is not None else (),
        end_ids=_end_ids(metadata, tokens, types),
        chat_template=metadata.get("chat_template"),
        template_tokens=_template_tokens(metadata, tokens),
    )


def _byte_level(metadata: Mapping[str, Any], tokens: list[str], types: Sequence[int], source: str) -> tuple[Tokenizer, bool]:
    name = metadata.get("ggml.pre", "default")
    splitting = _SPLITTINGS.get(name)
    if splitting is None:
        known = ", ".join(_SPLITTINGS)
        raise ModelError(f"{source}: pre-tokenizer {name!r} is not supported (known: {known}); {_WAY_OUT}")
    merges = [tuple(merge.split(" ")) for merge in metadata.get("ggml.merges", ())]
    core = _core(models.BPE, source, vocab=_vocabulary(tokens, types), merges=merges, ignore_merges=splitting.ignore_merges)
    if splitting.nfc:
        core.normalizer = normalizers.NFC()
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=splitting.gpt2_words)
    core.pre_tokenizer = pre_tokenizers.Sequence([*splitting.cut(), last])
    core.decoder = decoders.ByteLevel()
    return core, splitting.starts


def _sentencepiece(metadata: Mapping[str, Any], tokens: list[str], types: Sequence[int], source: str) -> Tokenizer:
    """SentencePiece BPE: merges follow from the scores; a byte that no token covers falls back to `<0x..>`."""
    scores = metadata.get("ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise ModelError(f"{source} is not a usable GGUF file: a 'llama' tokenizer needs one score a token; fetch it again")
    vocab = _vocabulary(tokens, types)
    unknown = next((token for token, type_ in zip(tokens, types, strict=True) if type_ == _UNKNOWN), None)
    core = _core(
        models.BPE,
        source,
        vocab=vocab,
        merges=_merges_from_scores(tokens, types, scores),
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback=True,
    )
    prefix = bool(metadata.get("ggml.add_space_prefix", True))
    spaces = normalizers.Replace(" ", "▁")
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if prefix else spaces
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    core.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return core


def _merges_from_scores(tokens: list[str], types: Sequence[int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every way of making a token from two others, best score first. Markers and bytes are never made by merging."""
    mergeable = {token: place for place, token in enumerate(tokens) if types[place] not in (_UNKNOWN, _CONTROL, _UNUSED, _BYTE)}
    ranked = []
    for token, place in mergeable.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in mergeable and right in mergeable:
                # Ties in the order transformers writes them into tokenizer.json: longer left part, then right part first.
                key = (-scores[place], -len(left), -len(right), place, mergeable[left], mergeable[right])
                ranked.append((key, (left, right)))
    ranked.sort()
    return [pair for _, pair in ranked]


def _core(model: Callable[..., Any], source: str, **arguments: Any) -> Tokenizer:
    try:
        return Tokenizer(model(**arguments))
    except Exception as error:  # the Rust side raises bare Exception, e.g. for a merge that makes no token
        raise ModelError(f"{source} has a tokenizer that does not hold together: {error}; fetch it again") from None


def _is_padding(token: str, type_: int) -> bool:
    return type_ == _UNUSED and token.startswith("[PAD")


def _vocabulary(tokens: list[str], types: Sequence[int]) -> dict[str, int]:
    """String → id; rows that only pad the embedding matrix are no tokens. Of two equal strings the first counts."""
    vocab: dict[str, int] = {}
    for place, (token, type_) in enumerate(zip(tokens, types, strict=True)):
        if not _is_padding(token, type_):
            vocab.setdefault(token, place)
    return vocab


def _add_markers(core: Tokenizer, tokens: list[str], types: Sequence[int]) -> None:
    for wanted, special in ((_CONTROL, True), (_UNKNOWN, True), (_USER_DEFINED, False)):
        found = [token for token, type_ in zip(tokens, types, strict=True) if type_ == wanted]
        added = [AddedToken(token, normalized=False, special=special) for token in found]
        if special:
            core.add_special_tokens(added)
        else:
            core.add_tokens(added)


def _token_id(metadata: Mapping[str, Any], key: str, tokens: list[str]) -> int | None:
    value = metadata.get(f"ggml.{key}")
    return value if isinstance(value, int) and 0 <= value < len(tokens) else None


def _end_ids(metadata: Mapping[str, Any], tokens: list[str], types: Sequence[int]) -> frozenset[int]:
    ends = {_token_id(metadata, key, tokens) for key in _END_KEYS}
    control = {token: place for place, token in enumerate(tokens) if types[place] == _CONTROL}
    # In the harmony format <|end|> closes one message of a turn, and <|return|> the turn.
    skipped = {"<|end|>"} if "<|return|>" in control else set()
    ends |= {control.get(marker) for marker in _END_MARKERS if marker not in skipped}
    return frozenset(end for end in ends if end is not None)


def _template_tokens(metadata: Mapping[str, Any], tokens: list[str]) -> dict[str, str]:
    # The key of the separator is misspelt in the format itself.
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding", "sep_token": "seperator"}
    found = {name: _token_id(metadata, f"{key}_token_id", tokens) for name, key in names.items()}
    return {name: tokens[place] for name, place in found.items() if place is not None}
