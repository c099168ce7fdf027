"""Names, paths and hub ids → objects: the only place that knows every kind of model and drafter.

A reference (REF) is a known name (`smollm2`), a .gguf file, a folder in Hugging Face form, or a hub id `owner/name[@revision]`.
Engines and their libraries are imported when a reference asks for them, never before.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from headstart import fetch
from headstart.drafters import ModelDrafter, NGramDrafter, NoDrafter
from headstart.errors import MissingExtraError, ModelError, OptionError, did_you_mean
from headstart.generation import LLM
from headstart.interfaces import Drafter, Model
from headstart.text import Tokenizer, check_same_vocabulary

__all__ = ["DEFAULT_TARGET", "load"]

DEFAULT_TARGET = "smollm2"
ENGINES = ("auto", "transformers")
Progress = Callable[[str, float | None], None]


@dataclass(frozen=True, kw_only=True)
class _Source:
    """A reference that was found on this machine."""

    ref: str
    kind: Literal["gguf", "folder"]
    path: Path


@dataclass(frozen=True, kw_only=True)
class _Opened:
    """A model in memory, with what it was loaded as."""

    model: Model
    tokenizer: Tokenizer
    engine: str
    loaded: dict[str, Any]


def load(
    target: str | os.PathLike[str] | Model = DEFAULT_TARGET,
    *,
    drafter: str | Drafter = "auto",  # none, ngram, model:REF, auto, or any Drafter
    engine: str = "auto",
    dtype: str = "auto",
    device: str = "auto",
    threads: int | None = None,
    context: int | None = None,
    offline: bool = False,
    progress: Progress | None = None,  # called with what is going on and how far it is (None: not known)
) -> LLM:
    """A target, its tokenizer and a drafter, ready to generate.

    Raises ModelError for what cannot be found or read, OptionError for what cannot be honoured, FetchError where a known model
    is not here and cannot be fetched, VocabularyMismatchError for a drafter model that means other tokens by the same ids."""
    if engine not in ENGINES:
        raise OptionError(f"`engine` must be one of {', '.join(ENGINES)}, got {engine!r}{did_you_mean(engine, ENGINES)}")
    tell = progress or (lambda stage, fraction: None)
    if not isinstance(target, (str, os.PathLike)):
        _refuse_load_options(dtype=dtype, device=device, threads=threads, context=context)
        return LLM(target, _drafter(drafter, target, None, _no_reference), target="custom")

    opened: dict[Path, _Opened] = {}

    def open_reference(ref: str) -> _Opened:
        source = _found(ref, offline, tell)
        if source.path not in opened:  # a model that drafts for itself is held once
            opened[source.path] = _opened(source, dtype, device, threads, context, tell)
        return opened[source.path]

    name = os.fspath(target)
    _check_drafter_name(drafter)
    main = open_reference(name)
    guesser = _drafter(drafter, main.model, main.tokenizer, open_reference)
    return LLM(main.model, guesser, tokenizer=main.tokenizer, target=name, engine=main.engine, loaded=main.loaded)


def _check_drafter_name(drafter: str | Drafter) -> None:
    """Refuse a wrong name before minutes are spent on the target."""
    if isinstance(drafter, str) and drafter not in ("none", "ngram", "auto") and not drafter.startswith("model:"):
        known = ("none", "ngram", "auto", "model:REF")
        raise OptionError(f"`drafter` must be one of {', '.join(known)}, got {drafter!r}{did_you_mean(drafter, known)}")


def _drafter(
    drafter: str | Drafter,
    model: Model,
    tokenizer: Tokenizer | None,
    open_reference: Callable[[str], _Opened],
) -> Drafter:
    if not isinstance(drafter, str):
        if not isinstance(drafter, Drafter):
            raise OptionError(f"`drafter` must be a name or a Drafter with name, open, propose and commit, got {drafter!r:.80}")
        return drafter
    _check_drafter_name(drafter)
    if drafter == "none":
        return NoDrafter()
    if drafter in ("ngram", "auto"):
        width = min(model.vocab_size, tokenizer.vocab_size) if tokenizer else model.vocab_size
        return NGramDrafter(width)
    ref = drafter.removeprefix("model:")
    if not ref:
        raise OptionError("`drafter` model: needs a reference after the colon, e.g. model:smollm2")
    guess = open_reference(ref)
    if tokenizer is not None:
        check_same_vocabulary(tokenizer, guess.tokenizer)
    return ModelDrafter(guess.model, name=drafter)


def _found(ref: str, offline: bool, tell: Progress) -> _Source:
    """Where a reference lies, fetched if that is allowed and needed."""
    if not ref:
        raise OptionError(f"`target` must not be empty; name a model ({', '.join(fetch.KNOWN)}), a path or a hub id")
    if ref in fetch.KNOWN:
        return _Source(ref=ref, kind="gguf", path=fetch.find(ref) or fetch.fetch(ref, offline=offline, progress=tell))
    path = Path(ref).expanduser()
    if path.is_dir():
        return _Source(ref=ref, kind="folder", path=path.resolve())
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ModelError(f"{ref} is a file but not a .gguf file; name a .gguf file or a Hugging Face folder")
        return _Source(ref=ref, kind="gguf", path=path.resolve())
    looks_like_path = ref.startswith((".", "/", "~")) or path.suffix.lower() == ".gguf" or ref.count("/") != 1
    if not looks_like_path:
        return _Source(ref=ref, kind="folder", path=_hub_folder(ref, offline, tell))
    hint = did_you_mean(ref, fetch.KNOWN)
    raise ModelError(
        f"no model {ref!r} here{hint or ';'} name a known model ({', '.join(fetch.KNOWN)}), a .gguf file, "
        "a Hugging Face folder or a hub id owner/name[@revision]"
    )


def _hub_folder(ref: str, offline: bool, tell: Progress) -> Path:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError
    except ImportError:
        raise MissingExtraError("huggingface_hub", "transformers", f"fetching {ref} from the hub") from None
    repository, _, revision = ref.partition("@")
    tell(f"looking up {ref} on the hub", None)
    wanted = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]
    try:
        return Path(snapshot_download(repository, revision=revision or None, allow_patterns=wanted, local_files_only=offline))
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise ModelError(f"the hub has no {ref}: {str(error).splitlines()[0]}") from None
    except LocalEntryNotFoundError:
        way_out = "drop --offline to fetch it" if offline else "check the network, or name a local folder"
        raise ModelError(f"{ref} is not on this machine and could not be fetched; {way_out}") from None
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise ModelError(f"{ref} could not be fetched from the hub: {str(error).splitlines()[0]}") from None


def _opened(source: _Source, dtype: str, device: str, threads: int | None, context: int | None, tell: Progress) -> _Opened:
    from headstart.models.transformers import TransformersModel

    tell(f"reading the tokenizer of {source.ref}", None)
    tokenizer = Tokenizer.from_gguf(source.path) if source.kind == "gguf" else Tokenizer.from_folder(source.path)
    model = TransformersModel.load(source.path, dtype=dtype, device=device, threads=threads, context=context, progress=tell)
    loaded = {"dtype": model.dtype, "device": model.device, "threads": threads, "context": model.context_limit}
    return _Opened(model=model, tokenizer=tokenizer, engine=model.engine, loaded=loaded)


def _no_reference(ref: str) -> _Opened:
    raise OptionError(f"`drafter` model:{ref} needs a target given by name or path; pass a Drafter object instead")


def _refuse_load_options(**options: Any) -> None:
    for name, value in options.items():
        if value not in (None, "auto"):
            raise OptionError(f"`{name}` cannot be set for a model object, got {value!r}; set it where the model is made")
