"""Names, paths and hub ids → objects: the only place that knows every kind of model. Drafters by name are `drafting`'s.

A reference (REF) is a known name (`smollm2`), a .gguf file, a folder in Hugging Face form, or a hub id `owner/name[@revision]`.
Engines and their libraries are imported when a reference asks for them, never before.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

from headstart import __version__, drafting, fetch
from headstart.errors import MissingExtraError, ModelError, OptionError, did_you_mean
from headstart.generation import LLM
from headstart.interfaces import Drafter, FeatureDrafter, Model
from headstart.models.memory import check_memory
from headstart.text import Tokenizer, check_same_vocabulary

__all__ = ["DEFAULT_TARGET", "Loaded", "load", "load_many"]

DEFAULT_TARGET = "smollm2"
ENGINES = ("auto", "native", "transformers")
DTYPES = ("auto", "float32", "bfloat16", "float16")
MAX_THREADS = 1024  # more only exhausts the system
MIN_CONTEXT = 8  # a loaded model is tried on a few tokens
Progress = Callable[[str, float | None], None]


@dataclass(frozen=True, kw_only=True)
class _Source:
    """A reference that was found on this machine."""

    ref: str
    kind: Literal["gguf", "folder"]
    path: Path


@dataclass(frozen=True, kw_only=True)
class _How:
    """How models are to be run, as the user put it."""

    engine: str
    dtype: str
    device: str
    threads: int | None
    context: int | None
    quantize: str | None


@dataclass(frozen=True, kw_only=True)
class _Opened:
    """A model in memory, with what it was loaded as."""

    model: Model
    engine: str
    loaded: dict[str, Any]


def load(
    target: str | os.PathLike[str] | Model = DEFAULT_TARGET,
    *,
    drafter: str | Drafter = "auto",  # a name (see `drafting`) or any Drafter
    memory: int = 0,  # tokens of earlier outputs that the drafter suffix looks through
    draft_vocab: int | None = None,  # a model drafts so many of its most frequent tokens alone; None: any
    engine: str = "auto",
    dtype: str = "auto",
    device: str = "auto",
    threads: int | None = None,
    context: int | None = None,
    quantize: str | None = None,
    offline: bool = False,
    progress: Progress | None = None,  # called with what is going on and how far it is (None: not known)
) -> LLM:
    """A target, its tokenizer and a drafter, ready to generate.

    Raises ModelError for what cannot be found or read, OptionError for what cannot be honoured, FetchError where a known model
    is not here and cannot be fetched, VocabularyMismatchError for a drafter model that means other tokens by the same ids."""
    how = _How(engine=engine, dtype=dtype, device=device, threads=threads, context=context, quantize=quantize)
    _check_options(how)
    wish = _wish(drafter, memory=memory, draft_vocab=draft_vocab)  # refused before minutes are spent on the target
    heads = _heads(wish)
    tell = progress or (lambda stage, fraction: None)
    if not isinstance(target, (str, os.PathLike)):
        if not all(hasattr(target, name) for name in ("vocab_size", "context_limit", "open", "score")):
            raise OptionError(f"`target` must be a name, a path or a Model (see headstart.interfaces), got {target!r:.80}")
        _refuse_load_options(engine=engine, dtype=dtype, device=device, threads=threads, context=context, quantize=quantize)
        guesser = _guesser(drafter, wish, drafting.Held(model=target), {})
        return LLM(target, guesser, target="custom")  # costs of objects are not kept

    name = os.fspath(target)
    # All that can be told before weights are read is told first.
    source = _found(name, offline, tell)
    _engine(source, how)
    tell(f"reading the tokenizer of {name}", None)
    tokenizer = _tokenizer(source)
    guesses = _guesses(wish, source, tokenizer, offline, tell)
    main, held = _open_all(source, tokenizer, list(guesses.values()), how, tell)
    guesser = _guesser(drafter, wish, held[source.path], {ref: held[guess.path] for ref, (guess, _) in guesses.items()})
    key = costs_key(source.path, [guess.path for guess, _ in guesses.values()] + heads, main.engine, main.loaded)
    key["draft_vocab"] = draft_vocab
    return LLM(main.model, guesser, tokenizer=tokenizer, target=name, engine=main.engine, loaded=main.loaded, costs_key=key)


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """One of several drafters on one target."""

    llm: LLM
    source: Path  # where the target lies
    model: Model | None  # the model it drafts with, where that is all it does
    looks_up: bool  # its drafts come from the text alone, without chance
    costs_key: dict[str, Any]  # what costs measured with it depend on


def load_many(
    target: str | os.PathLike[str],
    drafters: Sequence[str],
    *,
    engine: str = "auto",
    dtype: str = "auto",
    device: str = "auto",
    threads: int | None = None,
    context: int | None = None,
    quantize: str | None = None,
    offline: bool = False,
    progress: Progress | None = None,
) -> list[Loaded]:
    """One target with each of `drafters` in turn; every model is in memory once. Raises as `load`."""
    how = _How(engine=engine, dtype=dtype, device=device, threads=threads, context=context, quantize=quantize)
    _check_options(how)
    wishes = [drafting.parse(name) for name in drafters]
    tell = progress or (lambda stage, fraction: None)
    name = os.fspath(target)
    source = _found(name, offline, tell)
    _engine(source, how)
    tokenizer = _tokenizer(source)
    guesses = [_guesses(wish, source, tokenizer, offline, tell) for wish in wishes]
    main, held = _open_all(source, tokenizer, [guess for found in guesses for guess in found.values()], how, tell)
    base = LLM(main.model, tokenizer=tokenizer, target=name, engine=main.engine, loaded=main.loaded)
    loaded = []
    for wish, found, heads in zip(wishes, guesses, map(_heads, wishes), strict=True):
        models = {ref: held[guess.path] for ref, (guess, _) in found.items()}
        drafter = drafting.build(wish, held[source.path], models)
        alone = models[wish.parts[0].argument].model if len(wish.parts) == 1 and wish.parts[0].kind == "model" else None
        key = costs_key(source.path, [guess.path for guess, _ in found.values()] + heads, main.engine, main.loaded)
        llm = base.with_drafter(drafter, costs_key=key)
        # auto may have become a head, which reads more than the text.
        looks_up = wish.looks_up and not (isinstance(drafter, FeatureDrafter) and drafter.feature_layers)
        loaded.append(
            Loaded(llm=llm, source=source.path, model=alone, looks_up=looks_up, costs_key=key | {"drafter": drafter.name})
        )
    return loaded


def costs_key(target: Path, drafters: Sequence[Path], engine: str, loaded: Mapping[str, Any]) -> dict[str, Any]:
    """What measured costs depend on: the files and their dates, how they were loaded, the machine, the code that runs them."""
    code = Path(__file__).parent
    built = sorted(code.glob("_core*.so"))
    return {
        "target": _identity(target),
        "drafter_models": [_identity(path) for path in drafters],
        "engine": engine,
        "loaded": {name: str(value) for name, value in loaded.items()},
        "machine": [platform.node(), platform.machine(), os.cpu_count()],
        "version": [__version__, *(_identity(file) for file in built)],
    }


def _identity(path: Path) -> list[Any]:
    """A file or folder as long as it is the same: its place, its size, its date."""
    about = path.stat()
    return [str(path), about.st_size, about.st_mtime_ns]


def _check_options(how: _How) -> None:
    """Refuse what no model can be loaded with, before anything is fetched or read."""
    for name, value, known in (("engine", how.engine, ENGINES), ("dtype", how.dtype, DTYPES)):
        if value not in known:
            raise OptionError(f"`{name}` must be one of {', '.join(known)}, got {value!r}{did_you_mean(str(value), known)}")
    if not isinstance(how.device, str):
        raise OptionError(f"`device` must be 'auto', 'cpu', 'cuda' or 'cuda:N', got {how.device!r}")
    threads: Any = how.threads  # may be anything: users of Python pass it
    if threads is not None and not (_is_int(threads) and 1 <= threads <= MAX_THREADS):
        raise OptionError(
            f"`threads` must be a whole number from 1 to {MAX_THREADS}, got {threads!r}; this machine has {os.cpu_count()}"
        )
    context: Any = how.context
    if context is not None and not (_is_int(context) and context >= MIN_CONTEXT):
        raise OptionError(f"`context` must be a whole number, {MIN_CONTEXT} or more, got {context!r}")
    if how.quantize is not None and how.quantize not in (known := _native().QUANTIZED):
        raise OptionError(
            f"`quantize` must be one of {', '.join(known)}, got {how.quantize!r}{did_you_mean(str(how.quantize), known)}"
        )


def _is_int(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _wish(drafter: str | Drafter, **options: Any) -> drafting.Wish | None:
    """What a drafter's name asks for; None for a Drafter object."""
    if isinstance(drafter, str):
        return drafting.parse(drafter, **options)
    if isinstance(drafter, type) or not isinstance(drafter, Drafter):
        raise OptionError(f"`drafter` must be a name or a Drafter with name, open, propose and commit, got {drafter!r:.80}")
    for name, value in options.items():
        if value:
            raise OptionError(f"`{name}` cannot be set for a drafter object, got {value!r}; set it where the drafter is made")
    return None


def _guesser(
    drafter: str | Drafter, wish: drafting.Wish | None, target: drafting.Held, others: dict[str, drafting.Held]
) -> Drafter:
    if isinstance(drafter, str):
        assert wish is not None
        return drafting.build(wish, target, others)
    return drafter


def _heads(wish: drafting.Wish | None) -> list[Path]:
    """Where the heads a drafter names lie. Raises ModelError for one that is not here."""
    return [drafting.head_folder(part.head) for part in (wish.parts if wish else ()) if part.head is not None]


def _guesses(
    wish: drafting.Wish | None, target: _Source, tokenizer: Tokenizer, offline: bool, tell: Progress
) -> dict[str, tuple[_Source, Tokenizer]]:
    """Where the models a drafter names lie, by reference, and their tokenizers: the target's own vocabulary where it must be."""
    found: dict[str, tuple[_Source, Tokenizer]] = {}
    for part in wish.parts if wish else ():
        if (ref := part.reference) is None:
            continue
        if ref not in found:
            source = _found(ref, offline, tell)
            tell(f"reading the tokenizer of {ref}", None)
            found[ref] = source, tokenizer if source.path == target.path else _tokenizer(source)
        if part.kind == "model":
            check_same_vocabulary(tokenizer, found[ref][1])
    return found


def _found(ref: str, offline: bool, tell: Progress) -> _Source:
    """Where a reference lies, fetched if that is allowed and needed."""
    if not ref:
        raise OptionError(f"`target` must not be empty; name a model ({', '.join(fetch.KNOWN)}), a path or a hub id")
    if ref in fetch.KNOWN:
        return _Source(ref=ref, kind="gguf", path=fetch.find(ref) or fetch.fetch(ref, offline=offline, progress=tell))
    path = Path(ref).expanduser()
    if os.path.isdir(path):  # no error for names no file can have
        if not (path / "config.json").is_file():
            inside = ", ".join(sorted(file.name for file in path.glob("*.gguf"))[:3])
            hint = (
                f"no config.json; name one of its GGUF files by its path ({inside})"
                if inside
                else "no config.json and no GGUF file"
            )
            raise ModelError(f"no model in the folder {ref!r}: it holds {hint}")
        return _Source(ref=ref, kind="folder", path=path.resolve())
    if os.path.isfile(path):
        if path.suffix.lower() != ".gguf":
            raise ModelError(f"{ref} is a file but not a .gguf file; name a .gguf file or a Hugging Face folder")
        return _Source(ref=ref, kind="gguf", path=path.resolve())
    looks_like_path = ref.startswith((".", "/", "~")) or path.suffix.lower() == ".gguf" or ref.count("/") != 1
    if not looks_like_path:
        return _Source(ref=ref, kind="folder", path=_hub_folder(ref, offline, tell))
    hint = did_you_mean(ref, fetch.KNOWN)
    raise ModelError(
        f"no model {ref!r:.200} here{hint or ';'} name a known model ({', '.join(fetch.KNOWN)}), a .gguf file, "
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


def _engine(source: _Source, how: _How) -> str:
    """The engine that runs a reference: GGUF files are the native engine's, folders transformers' unless they are quantised.

    Raises OptionError for what the engine cannot honour: the native one computes on the CPU, in the file's own numbers."""
    kind = "native" if source.kind == "gguf" or how.quantize else "transformers"
    chosen = how.engine if how.engine != "auto" else kind
    if how.quantize and source.kind == "gguf":
        raise OptionError(f"`quantize` is for folders, got {how.quantize!r} for {source.ref}; a GGUF file is run as it is")
    if how.quantize and chosen != "native":
        raise OptionError(f"`quantize` is for the native engine, got {how.quantize!r} under {chosen}; use --engine native")
    if chosen == "native":
        way_out = "use --engine transformers"
        if how.dtype != "auto":
            raise OptionError(f"`dtype` is the file's own under the native engine, got {how.dtype!r}; {way_out}")
        if how.device not in ("auto", "cpu"):
            raise OptionError(f"`device` is the CPU under the native engine, got {how.device!r}; {way_out}")
    return chosen


def _check_memory(target: _Source, how: _How, guesses: list[_Source], hows: dict[Path, _How]) -> None:
    """Refuse, before weights are read, what cannot be held: target, drafter models and a cache for each."""
    needs = []
    for source, its in ((target, how), *((guess, hows[guess.path]) for guess in guesses)):
        if _engine(source, its) == "native":
            own = _native().NativeModel.needs(source.path, context=its.context, quantize=its.quantize)
            needs.append(replace(own, context=min(own.context, how.context or own.context)))
    if needs:
        check_memory(needs, how.context)


def _open_all(
    target: _Source, tokenizer: Tokenizer, found: Sequence[tuple[_Source, Tokenizer]], how: _How, tell: Progress
) -> tuple[_Opened, dict[Path, drafting.Held]]:
    """The target, and every model by where it lies; one that drafts for itself, or is named twice, is held once."""
    guesses = list({guess.path: guess for guess, _ in found}.values())
    # The context asked for is the target's; a drafter that holds less stops drafting where its own ends.
    hows = {
        guess.path: replace(how, context=None, quantize=how.quantize if guess.kind == "folder" else None) for guess in guesses
    }
    _check_memory(target, how, guesses, hows)
    main = _opened(target, how, tell)
    held = {target.path: drafting.Held(model=main.model, tokenizer=tokenizer)}
    for guess, its_tokenizer in found:
        if guess.path not in held:
            model = _opened(guess, hows[guess.path], tell).model
            held[guess.path] = drafting.Held(model=model, tokenizer=its_tokenizer)
    return main, held


def _opened(source: _Source, how: _How, tell: Progress) -> _Opened:
    if _engine(source, how) == "native":
        return _opened_natively(source, how, tell)
    try:
        from headstart.models.transformers import TransformersModel
    except MissingExtraError as error:
        otherwise = "; --engine native runs llama, qwen2, qwen3 and gemma3 folders without it" if source.kind == "folder" else ""
        raise MissingExtraError(error.package, "transformers", f"running {source.ref} with transformers", otherwise) from None

    model = TransformersModel.load(
        source.path, dtype=how.dtype, device=how.device, threads=how.threads, context=how.context, progress=tell
    )
    loaded = {"dtype": model.dtype, "device": model.device, "threads": how.threads, "context": model.context_limit}
    return _Opened(model=model, engine=model.engine, loaded=loaded)


def _opened_natively(source: _Source, how: _How, tell: Progress) -> _Opened:
    model = _native().NativeModel.load(
        source.path, threads=how.threads, context=how.context, quantize=how.quantize, progress=tell
    )
    loaded = {
        "dtype": model.dtype,
        "quantize": model.quantize,
        "device": model.device,
        "threads": model.threads,
        "context": model.context_limit,
        "instruction_set": model.instruction_set,
        "weight_bytes": model.weight_bytes,
        "cache_bytes_per_token": model.cache_bytes_per_token,
        "cache_bytes": model.cache_bytes_per_token * model.context_limit,
    }
    return _Opened(model=model, engine=model.engine, loaded=loaded)


def _native() -> Any:
    """The native engine's module. Raises ModelError where it is not built."""
    try:
        from headstart.models import native
    except ImportError as error:
        raise ModelError(
            f"the native engine is not built here ({error}); pip install . builds it, or use --engine transformers"
        ) from None
    return native


def _tokenizer(source: _Source) -> Tokenizer:
    return Tokenizer.from_gguf(source.path) if source.kind == "gguf" else Tokenizer.from_folder(source.path)


def _refuse_load_options(**options: Any) -> None:
    for name, value in options.items():
        if value not in (None, "auto"):
            raise OptionError(f"`{name}` cannot be set for a model object, got {value!r}; set it where the model is made")
