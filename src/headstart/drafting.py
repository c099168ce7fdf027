"""Drafters by name: what `--drafter` may say, and the drafter it means.

    none | auto | ngram | suffix | model:REF | eagle:REF | medusa:REF | A+B (the first that proposes wins)

It knows every kind of drafter and what each needs. It does not know how a reference becomes a model: that is `loading`'s.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path

from headstart import shipped
from headstart.checkpoints import EagleHead, MedusaHead, read_head
from headstart.drafters import CombinedDrafter, EagleDrafter, MedusaDrafter, ModelDrafter, NGramDrafter, NoDrafter, SuffixDrafter
from headstart.errors import ModelError, OptionError, VocabularyMismatchError, did_you_mean
from headstart.interfaces import Drafter, FeatureModel, Model

__all__ = ["Part", "Wish", "build", "head_folder", "parse"]

_WORDS = ("none", "auto", "ngram", "suffix")
_LOOKUPS = ("auto", "ngram", "suffix")
_PREFIXES = {
    "model": "a reference after the colon, e.g. model:smollm2",
    "eagle": "a folder with a head after the colon, or a head of the package's by name, e.g. eagle:smollm2",
    "medusa": "a folder with heads after the colon",
}
_HEADS = ("eagle", "medusa")
_KNOWN = (*_WORDS, *(f"{prefix}:REF" for prefix in _PREFIXES))
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
        return self.argument if self.kind == "model" else None


@dataclass(frozen=True, kw_only=True)
class Wish:
    """A drafter as asked for, its options checked."""

    parts: tuple[Part, ...]
    memory: int = 0  # tokens of earlier outputs that `suffix` looks through

    @property
    def name(self) -> str:
        """As it was written."""
        return "+".join(part.name for part in self.parts)

    @property
    def looks_up(self) -> bool:
        """Whether its drafts come from the text alone, without chance and without a model."""
        return all(part.kind in _LOOKUPS for part in self.parts)


def parse(name: str, *, memory: object = 0) -> Wish:
    """What a drafter's name and its options ask for. Raises OptionError for unknown names and options nothing would use."""
    parts = tuple(_part(each, name) for each in _PLUS.split(name))
    if len(parts) > 1 and any(part.kind == "none" for part in parts):
        raise OptionError(f"`drafter` none cannot be combined, got {name!r}; leave it out")
    if not isinstance(memory, Integral) or isinstance(memory, bool) or memory < 0 or memory == 1:
        raise OptionError(f"`memory` must be a number of tokens, 2 or more, or 0 for none, got {memory!r}")
    if memory and not any(part.kind == "suffix" for part in parts):
        raise OptionError(f"`memory` is for the drafter suffix, got memory {memory} with --drafter {name}; use --drafter suffix")
    return Wish(parts=parts, memory=int(memory))


def _part(text: str, name: str) -> Part:
    kind, colon, argument = text.partition(":")
    if colon and kind in _PREFIXES:
        if not argument:
            raise OptionError(f"`drafter` {kind}: needs {_PREFIXES[kind]}, got {name!r}")
        return Part(kind=kind, argument=argument)
    if text in _WORDS:
        return Part(kind=text)
    known = (*_KNOWN, "A+B")
    raise OptionError(f"`drafter` must be one of {', '.join(known)}, got {name!r}{did_you_mean(text, _KNOWN)}")


def build(wish: Wish, width: int, models: Mapping[str, Model], target: Model) -> Drafter:
    """The drafter. `width`: tokens the target's rows are over; `models`: by the reference that names them."""
    made = [_made(part, wish, width, models, target) for part in wish.parts]
    return made[0] if len(made) == 1 else CombinedDrafter(*made)


def head_folder(ref: str) -> Path:
    """Where a head lies: a folder, or one of the package's by name. Raises ModelError."""
    folder = Path(ref).expanduser()
    found = folder if folder.is_dir() else shipped.folder_of(ref)
    if found is None:
        known = f", or name one of the package's: {', '.join(shipped.names())}" if shipped.names() else ""
        raise ModelError(f"no head {ref!r:.200} here; name the folder that holds its config.json{known}")
    return found


def _made(part: Part, wish: Wish, width: int, models: Mapping[str, Model], target: Model) -> Drafter:
    if part.kind == "none":
        return NoDrafter()
    if part.kind == "auto":
        own = shipped.matching(target)
        return NGramDrafter(width) if own is None else _beside(read_head(own), part, target)
    if part.kind == "ngram":
        return NGramDrafter(width)
    if part.head is not None:
        return _beside(read_head(head_folder(part.head)), part, target)
    if part.kind == "suffix":
        return SuffixDrafter(width, memory=wish.memory)
    if part.argument not in models:
        raise OptionError(f"`drafter` {part.name} needs a target given by name or path; pass a Drafter object instead")
    model = models[part.argument]
    if model.vocab_size < width:
        raise VocabularyMismatchError(
            f"`drafter` {part.name} has rows for {model.vocab_size} tokens, the target for {width}; "
            "use a drafter of the same model family, or --drafter ngram"
        )
    return ModelDrafter(model, name=part.name)


def _beside(head: EagleHead | MedusaHead, part: Part, target: Model) -> Drafter:
    """The drafter that runs `head` beside `target`. Raises ModelError where the two do not belong together."""
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
    if isinstance(head, MedusaHead):
        return MedusaDrafter(head, num_layers=target.num_layers, name=part.name)
    layers = head.config.layers_of(target.num_layers)
    if not all(0 <= layer <= target.num_layers for layer in layers):
        raise ModelError(f"`drafter` {part.name} reads layers {list(layers)}, the target has {target.num_layers}")
    borrows = {"embed_tokens.weight", "lm_head.weight"} - set(head.weights)
    if borrows and head.config.hidden_size != target.hidden_size:
        raise ModelError(
            f"`drafter` {part.name} brings no {sorted(borrows)[0]} and is {head.config.hidden_size} wide, the target "
            f"{target.hidden_size}; it cannot borrow the target's"
        )
    return EagleDrafter(head, target, num_layers=target.num_layers, name=part.name)
