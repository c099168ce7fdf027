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
from typing import Any

from headstart import __version__, drafting
from headstart.errors import MissingExtraError, ModelError, OptionError, did_you_mean
from headstart.generation import LLM
from headstart.interfaces import Drafter, FeatureDrafter, Model
from headstart.models.memory import check_memory
from headstart.references import Source, find, find_head
from headstart.text import Tokenizer, check_same_vocabulary

__all__ = ["DEFAULT_TARGET", "Loaded", "load", "load_many"]

DEFAULT_TARGET = "smollm2"
ENGINES = ("auto", "native", "transformers")
DTYPES = ("auto", "float32", "bfloat16", "float16")
MAX_THREADS = 1024  # more only exhausts the system
MIN_CONTEXT = 8  # a loaded model is tried on a few tokens
Progress = Callable[[str, float | None], None]


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
    draft_quantize: str | None = None,  # 'q4_0' or 'q8_0': what wider matrices of models that draft become, native engine only
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
    _check_options(how, draft_quantize)
    # Refused before minutes are spent on the target.
    wish = _wish(drafter, memory=memory, draft_vocab=draft_vocab, draft_quantize=draft_quantize)
    tell = progress or (lambda stage, fraction: None)
    heads = _heads([wish] if wish else [], offline, tell)
    if not isinstance(target, (str, os.PathLike)):
        if not all(hasattr(target, name) for name in ("vocab_size", "context_limit", "open", "score")):
            raise OptionError(f"`target` must be a name, a path or a Model (see headstart.interfaces), got {target!r:.80}")
        _refuse_load_options(engine=engine, dtype=dtype, device=device, threads=threads, context=context, quantize=quantize)
        guesser = _guesser(drafter, wish, drafting.Held(model=target), {}, heads)
        return LLM(target, guesser, target="custom")  # costs of objects are not kept

    name = os.fspath(target)
    # All that can be told before weights are read is told first.
    source = find(name, offline, tell)
    _engine(source, how)
    tell(f"reading the tokenizer of {name}", None)
    tokenizer = _tokenizer(source)
    guesses = _guesses(wish, source, tokenizer, offline, tell)
    main, held, drafting_models = _open_all(source, tokenizer, [guesses], how, draft_quantize, tell)
    guesser = _guesser(drafter, wish, held, drafting_models, heads)
    key = _costs_key(source, wish, guesses, heads, main)
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
    memory: int = 0,  # these three as for `load`, each for the drafters that have a use for it
    draft_vocab: int | None = None,
    draft_quantize: str | None = None,
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
    _check_options(how, draft_quantize)
    wishes = drafting.parse_all(drafters, memory=memory, draft_vocab=draft_vocab, draft_quantize=draft_quantize)
    tell = progress or (lambda stage, fraction: None)
    name = os.fspath(target)
    source = find(name, offline, tell)
    _engine(source, how)
    heads = _heads(wishes, offline, tell)
    tokenizer = _tokenizer(source)
    guesses = [_guesses(wish, source, tokenizer, offline, tell) for wish in wishes]
    main, held, models = _open_all(source, tokenizer, guesses, how, draft_quantize, tell)
    base = LLM(main.model, tokenizer=tokenizer, target=name, engine=main.engine, loaded=main.loaded)
    loaded = []
    for wish, found in zip(wishes, guesses, strict=True):
        drafter = drafting.build(wish, held, models, heads)
        alone = models[wish.parts[0].argument].model if len(wish.parts) == 1 and wish.parts[0].kind == "model" else None
        key = _costs_key(source, wish, found, heads, main)
        llm = base.with_drafter(drafter, costs_key=key)
        # auto may have become a head, which reads more than the text.
        looks_up = wish.looks_up and not (isinstance(drafter, FeatureDrafter) and drafter.feature_layers)
        loaded.append(
            Loaded(llm=llm, source=source.path, model=alone, looks_up=looks_up, costs_key=key | {"drafter": drafter.name})
        )
    return loaded


def _costs_key(
    target: Source,
    wish: drafting.Wish | None,
    guesses: Mapping[str, tuple[Source, Tokenizer]],
    heads: Mapping[str, Path],
    main: _Opened,
) -> dict[str, Any]:
    """What measured costs depend on: the files and their dates, how they were loaded, the machine, the code that runs them."""
    code = Path(__file__).parent
    built = sorted(code.glob("_core*.so"))
    parts = wish.parts if wish else ()
    own = [heads[part.head] for part in parts if part.head is not None]
    return {
        "target": _identity(target.path),
        "drafter_models": [_identity(path) for path in [*(guess.path for guess, _ in guesses.values()), *own]],
        "engine": main.engine,
        "loaded": {name: str(value) for name, value in main.loaded.items()},
        "machine": [platform.node(), platform.machine(), os.cpu_count()],
        "version": [__version__, *(_identity(file) for file in built)],
        "draft_vocab": wish.draft_vocab if wish else None,
        "draft_quantize": wish.draft_quantize if wish else None,
    }


def _identity(path: Path) -> list[Any]:
    """A file or folder as long as it is the same: its place, its size, its date."""
    about = path.stat()
    return [str(path), about.st_size, about.st_mtime_ns]


def _check_options(how: _How, draft_quantize: str | None) -> None:
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
    for name, wanted in (("quantize", how.quantize), ("draft_quantize", draft_quantize)):
        if wanted is not None and wanted not in (known := _native().QUANTIZED):
            raise OptionError(f"`{name}` must be one of {', '.join(known)}, got {wanted!r}{did_you_mean(wanted, known)}")
    if draft_quantize is not None and how.engine == "transformers":
        raise OptionError(f"`draft_quantize` is for the native engine, got {draft_quantize!r} with engine transformers")


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
    drafter: str | Drafter,
    wish: drafting.Wish | None,
    target: drafting.Held,
    others: dict[str, drafting.Held],
    heads: Mapping[str, Path],
) -> Drafter:
    if isinstance(drafter, str):
        assert wish is not None
        return drafting.build(wish, target, others, heads)
    return drafter


def _heads(wishes: Sequence[drafting.Wish], offline: bool, tell: Progress) -> dict[str, Path]:
    """Where the heads that drafters name lie, by reference. Raises ModelError for one that cannot be found."""
    named = [part.head for wish in wishes for part in wish.parts if part.head is not None]
    return {ref: find_head(ref, offline, tell) for ref in dict.fromkeys(named)}


def _guesses(
    wish: drafting.Wish | None, target: Source, tokenizer: Tokenizer, offline: bool, tell: Progress
) -> dict[str, tuple[Source, Tokenizer]]:
    """Where the models a drafter names lie, by reference, and their tokenizers: the target's own vocabulary where it must be."""
    found: dict[str, tuple[Source, Tokenizer]] = {}
    for part in wish.parts if wish else ():
        if (ref := part.reference) is None:
            continue
        if ref not in found:
            source = find(ref, offline, tell)
            tell(f"reading the tokenizer of {ref}", None)
            found[ref] = source, tokenizer if source.path == target.path else _tokenizer(source)
        if part.kind == "model":
            check_same_vocabulary(tokenizer, found[ref][1])
    return found


def _engine(source: Source, how: _How, *, drafts: bool = False) -> str:
    """The engine that runs a reference: GGUF files are the native engine's, folders transformers' unless they are quantised.
    A GGUF file is requantised only where it `drafts`: a target is run as it is.

    Raises OptionError for what the engine cannot honour: the native one computes on the CPU, in the file's own numbers."""
    kind = "native" if source.kind == "gguf" or how.quantize else "transformers"
    chosen = how.engine if how.engine != "auto" else kind
    if how.quantize and source.kind == "gguf" and not drafts:
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


def _check_memory(target: Source, how: _How, guesses: Sequence[tuple[Source, _How]]) -> None:
    """Refuse, before weights are read, what cannot be held: target, drafter models and a cache for each."""
    needs = []
    for source, its in ((target, how), *guesses):
        if _engine(source, its, drafts=source is not target) == "native":
            own = _native().NativeModel.needs(source.path, context=its.context, quantize=its.quantize)
            needs.append(replace(own, context=min(own.context, how.context or own.context)))
    if needs:
        check_memory(needs, how.context)


def _open_all(
    target: Source,
    tokenizer: Tokenizer,
    found: Sequence[Mapping[str, tuple[Source, Tokenizer]]],  # by drafter: the models it names, by reference
    how: _How,
    draft_quantize: str | None,
    tell: Progress,
) -> tuple[_Opened, drafting.Held, dict[str, drafting.Held]]:
    """The target, as opened and as held, and every model that drafts, by reference.

    One that drafts for itself, or is named twice, is in memory once, unless it is to draft in other numbers than the target's."""
    named = {ref: pair for guesses in found for ref, pair in guesses.items()}
    # The context asked for is the target's; a drafter that holds less stops drafting where its own ends.
    hows = {
        ref: replace(how, context=None, quantize=draft_quantize or (how.quantize if guess.kind == "folder" else None))
        for ref, (guess, _) in named.items()
    }
    own = (target.path, how.quantize)
    others = {(guess.path, hows[ref].quantize): (guess, hows[ref]) for ref, (guess, _) in named.items()}
    _check_memory(target, how, [pair for key, pair in others.items() if key != own])
    main = _opened(target, how, tell)
    models = {own: main.model}
    for key, (guess, its) in others.items():
        if key not in models:
            models[key] = _opened(guess, its, tell, drafts=True).model
    held = {
        ref: drafting.Held(model=models[guess.path, hows[ref].quantize], tokenizer=its_tokenizer)
        for ref, (guess, its_tokenizer) in named.items()
    }
    return main, drafting.Held(model=main.model, tokenizer=tokenizer), held


def _opened(source: Source, how: _How, tell: Progress, *, drafts: bool = False) -> _Opened:
    if _engine(source, how, drafts=drafts) == "native":
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


def _opened_natively(source: Source, how: _How, tell: Progress) -> _Opened:
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


def _tokenizer(source: Source) -> Tokenizer:
    return Tokenizer.from_gguf(source.path) if source.kind == "gguf" else Tokenizer.from_folder(source.path)


def _refuse_load_options(**options: Any) -> None:
    for name, value in options.items():
        if value not in (None, "auto"):
            raise OptionError(f"`{name}` cannot be set for a model object, got {value!r}; set it where the model is made")
