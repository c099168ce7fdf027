"""Drafters by name: what `--drafter` may say, and the drafter it means.

    none | auto | ngram | suffix | model:REF | cross:REF | skip:N | eagle:REF | medusa:REF | A+B (A where it has enough)

It knows every kind of drafter and what each needs. It does not know how a reference becomes a model: that is `loading`'s.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

from headstart import shipped
from headstart.checkpoints import EagleHead, MedusaHead, read_head
from headstart.drafters import (
    CombinedDrafter,
    CrossDrafter,
    EagleDrafter,
    MedusaDrafter,
    ModelDrafter,
    NGramDrafter,
    NoDrafter,
    SkipDrafter,
    SuffixDrafter,
)
from headstart.errors import ModelError, OptionError, VocabularyMismatchError, did_you_mean
from headstart.interfaces import Divisible, Drafter, FeatureModel, HeadEngine, Model, ProductEngine
from headstart.text import Crossing, Tokenizer

__all__ = ["Held", "Part", "Wish", "build", "parse", "parse_all"]

_WORDS = ("none", "auto", "ngram", "suffix")
_LOOKUPS = ("auto", "ngram", "suffix")
_REFERENCE = "a reference after the colon, e.g. {}:smollm2"
_PREFIXES = {
    "model": _REFERENCE,
    "cross": _REFERENCE,
    "skip": "a number of layers after the colon, e.g. {}:8",
    "eagle": "a folder with a head after the colon, one of the package's by name or a hub id, e.g. {}:smollm2",
    "medusa": "a folder with heads after the colon",
}
_MODELS = ("model", "cross", "skip")  # those that run a model, whose vocabulary can be cut
_HEADS = ("eagle", "medusa")
_QUANTIZED: dict[str, Literal["q8_0", "q4_0"]] = {"q8_0": "q8_0", "q4_0": "q4_0"}
_KNOWN = (*_WORDS, "model:REF", "cross:REF", "skip:N", "eagle:REF", "medusa:REF")
# A file's name may hold a plus sign too: one that begins another drafter divides.
_PLUS = re.compile(rf"\+(?=(?:{'|'.join(_WORDS)})(?:\+|$)|(?:{'|'.join(_PREFIXES)}):)")


@dataclass(frozen=True, kw_only=True)
class Part:
    """One drafter of a name: `model:smollm2` is kind model, argument smollm2."""

    kind: str
    argument: str = ""

    @property
    def name(self) -> str:
        """As it was written."""
        return f"{self.kind}:{self.argument}" if self.argument else self.kind

    @property
    def head(self) -> str | None:
        """The head it names, if it names one."""
        return self.argument if self.kind in _HEADS else None

    @property
    def reference(self) -> str | None:
        """The model it names, if it names one."""
        return self.argument if self.kind in ("model", "cross") else None


@dataclass(frozen=True, kw_only=True)
class Wish:
    """A drafter as asked for, its options checked."""

    parts: tuple[Part, ...]
    memory: int = 0  # tokens of earlier outputs that `suffix` looks through
    draft_vocab: int | None = None  # a model drafts so many of its most frequent tokens alone; None: any
    draft_quantize: str | None = None  # what the wider matrices of its models become at load; None: they stay as they are

    @property
    def name(self) -> str:
        """As it was written."""
        return "+".join(part.name for part in self.parts)

    @property
    def looks_up(self) -> bool:
        """Whether its drafts come from the text alone, without chance and without a model."""
        return all(part.kind in _LOOKUPS for part in self.parts)


@dataclass(frozen=True, kw_only=True)
class Held:
    """A model in memory and its tokenizer, if it has one."""

    model: Model
    tokenizer: Tokenizer | None = None


def parse(name: str, *, memory: Any = 0, draft_vocab: Any = None, draft_quantize: str | None = None) -> Wish:
    """What a drafter's name and its options ask for. Raises OptionError for unknown names and options nothing would use."""
    parts = tuple(_part(each, name) for each in _PLUS.split(name))
    if len(parts) > 1 and any(part.kind == "none" for part in parts):
        raise OptionError(f"`drafter` none cannot be combined, got {name!r}; leave it out")
    if not _is_int(memory) or memory < 0 or memory == 1:
        raise OptionError(f"`memory` must be a number of tokens, 2 or more, or 0 for none, got {memory!r}")
    uses = _uses(parts)
    if memory and not uses["memory"]:
        raise OptionError(f"`memory` is for the drafter suffix, got memory {memory} with --drafter {name}; use --drafter suffix")
    if draft_vocab is not None:
        if not _is_int(draft_vocab) or draft_vocab < 1:
            raise OptionError(f"`draft_vocab` must be a number of tokens, 1 or more, got {draft_vocab!r}")
        if not uses["draft_vocab"]:
            raise OptionError(
                f"`draft_vocab` is for drafters that run a model, got draft_vocab {draft_vocab} with --drafter {name}; "
                "use model:REF, cross:REF or skip:N"
            )
        draft_vocab = int(draft_vocab)
    if draft_quantize is not None and not uses["draft_quantize"]:
        raise OptionError(
            f"`draft_quantize` is for models and heads that only draft, got {draft_quantize!r} with --drafter {name}; "
            "use model:REF, cross:REF, eagle:REF or medusa:REF"
        )
    return Wish(parts=parts, memory=int(memory), draft_vocab=draft_vocab, draft_quantize=draft_quantize)


def parse_all(names: Sequence[str], **options: Any) -> list[Wish]:
    """Several drafters that share options: each gets those it has a use for. Raises OptionError as `parse`, and for an option
    that none of them would use."""
    wishes: list[Wish] = []
    unused = {name for name, value in options.items() if value}
    for name in names:
        uses = _uses(parse(name).parts)
        own = {option: value for option, value in options.items() if uses[option]}
        unused -= set(own)
        wishes.append(parse(name, **own))
    if unused:
        parse(names[-1] if names else "none", **{option: options[option] for option in sorted(unused)})  # says why
    return wishes


def _uses(parts: Sequence[Part]) -> dict[str, bool]:
    """Which options some of these drafters have a use for."""
    return {
        "memory": any(part.kind == "suffix" for part in parts),
        "draft_vocab": any(part.kind in _MODELS for part in parts),
        "draft_quantize": any(part.reference or part.kind in _HEADS for part in parts),
    }


def _is_int(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _part(text: str, name: str) -> Part:
    kind, colon, argument = text.partition(":")
    if colon and kind in _PREFIXES:
        if not argument or (kind == "skip" and not (argument.isascii() and argument.isdigit() and int(argument) > 0)):
            raise OptionError(f"`drafter` {kind}: needs {_PREFIXES[kind].format(kind)}, got {name!r}")
        return Part(kind=kind, argument=argument)
    if text in _WORDS:
        return Part(kind=text)
    known = (*_KNOWN, "A+B")
    raise OptionError(f"`drafter` must be one of {', '.join(known)}, got {name!r}{did_you_mean(text, _KNOWN)}")


def build(wish: Wish, target: Held, others: Mapping[str, Held], heads: Mapping[str, Path] | None = None) -> Drafter:
    """The drafter of a target. By reference, `others`: the models that the wish names, `heads`: the folders of its heads."""
    made = [_made(part, wish, target, others, heads or {}) for part in wish.parts]
    return made[0] if len(made) == 1 else CombinedDrafter(*made)


def _made(part: Part, wish: Wish, target: Held, others: Mapping[str, Held], heads: Mapping[str, Path]) -> Drafter:
    # Rows of the target are over this many tokens.
    width = min(target.model.vocab_size, target.tokenizer.vocab_size) if target.tokenizer else target.model.vocab_size
    if part.head is not None:
        return _beside(read_head(heads[part.head]), part, target.model, wish.draft_quantize)
    match part.kind:
        case "none":
            return NoDrafter()
        case "auto":
            own = shipped.matching(target.model)
            lookup = SuffixDrafter(width)
            if own is None:
                return lookup
            return CombinedDrafter(lookup, _beside(read_head(own), Part(kind="eagle", argument=own.name), target.model))
        case "ngram":
            return NGramDrafter(width)
        case "suffix":
            return SuffixDrafter(width, memory=wish.memory)
        case "skip":
            return SkipDrafter(_first_layers(part, wish, target), name=part.name)
    if part.argument not in others:
        raise OptionError(f"`drafter` {part.name} needs a target given by name or path; pass a Drafter object instead")
    other = others[part.argument]
    if part.kind == "cross":
        return _across(part, wish, target, other)
    if other.model.vocab_size < width:
        raise VocabularyMismatchError(
            f"`drafter` {part.name} has rows for {other.model.vocab_size} tokens, the target for {width}; "
            "use a drafter of the same model family, or --drafter ngram"
        )
    return ModelDrafter(_cut(part, wish, other), name=part.name)


def _first_layers(part: Part, wish: Wish, target: Held) -> Model:
    if not isinstance(target.model, Divisible):
        raise OptionError(f"`drafter` {part.name} needs a target that can stop after some layers, such as one given by path")
    layers = int(part.argument)
    if layers >= target.model.num_layers:
        most = target.model.num_layers - 1
        raise OptionError(f"`drafter` {part.name} must skip at least one of the target's layers; use skip:{most} or less")
    return target.model.part(layers=layers, ids=_frequent(wish, target))


def _across(part: Part, wish: Wish, target: Held, other: Held) -> Drafter:
    if target.tokenizer is None or other.tokenizer is None:
        raise OptionError(f"`drafter` {part.name} needs a target and a drafter with tokenizers")
    return CrossDrafter(_cut(part, wish, other), Crossing(target.tokenizer, other.tokenizer), name=part.name)


def _cut(part: Part, wish: Wish, held: Held) -> Model:
    """The model, for its most frequent tokens alone if that was asked for."""
    ids = _frequent(wish, held)
    if ids is None:
        return held.model
    if not isinstance(held.model, Divisible):
        raise OptionError(f"`draft_vocab` cannot cut the vocabulary of {part.name}")
    return held.model.part(ids=ids)


def _frequent(wish: Wish, held: Held) -> list[int] | None:
    if wish.draft_vocab is None:
        return None
    if held.tokenizer is None:
        raise OptionError(f"`draft_vocab` needs a model with a tokenizer, got draft_vocab {wish.draft_vocab}")
    return [token for token in held.tokenizer.frequent(wish.draft_vocab) if token < held.model.vocab_size]


def _beside(head: EagleHead | MedusaHead, part: Part, target: Model, quantize: str | None = None) -> Drafter:
    """The drafter that runs `head` beside `target`, its layer made smaller as it says itself unless `quantize` is given.

    Raises ModelError where the two do not belong together."""
    if not isinstance(target, FeatureModel):
        raise OptionError(f"`drafter` {part.name} reads the target's hidden states, and this kind of target hands out none")
    kind = "eagle" if isinstance(head, EagleHead) else "medusa"
    if kind != part.kind and part.kind != "auto":
        raise OptionError(f"`drafter` {part.name} names a head of the other kind; use {kind}:{part.argument}")
    hidden = head.config.target_hidden_size if isinstance(head, EagleHead) else head.hidden_size
    if hidden != target.hidden_size:
        raise ModelError(f"`drafter` {part.name} reads hidden states of {hidden} numbers, the target has {target.hidden_size}")
    vocab = head.config.vocab_size if isinstance(head, EagleHead) else head.vocab_size
    if vocab != target.vocab_size:
        raise VocabularyMismatchError(f"`drafter` {part.name} was made for {vocab} tokens, the target has {target.vocab_size}")
    if quantize is not None and not isinstance(target, HeadEngine if isinstance(head, EagleHead) else ProductEngine):
        raise OptionError(f"`draft_quantize` {quantize} needs a target on the native engine, which {part.name} then runs on")
    if isinstance(head, MedusaHead):
        return MedusaDrafter(head, target, num_layers=target.num_layers, quantize=quantize, name=part.name)
    layers = head.config.layers_of(target.num_layers)
    if not all(0 <= layer <= target.num_layers for layer in layers):
        raise ModelError(f"`drafter` {part.name} reads layers {list(layers)}, the target has {target.num_layers}")
    borrows = {"embed_tokens.weight", "lm_head.weight"} - set(head.weights)
    if borrows and head.config.hidden_size != target.hidden_size:
        raise ModelError(
            f"`drafter` {part.name} brings no {sorted(borrows)[0]} and is {head.config.hidden_size} wide, the target "
            f"{target.hidden_size}; it cannot borrow the target's"
        )
    if quantize is not None:
        head = replace(head, config=replace(head.config, quantize=_QUANTIZED[quantize]))
    return EagleDrafter(head, target, num_layers=target.num_layers, name=part.name)
