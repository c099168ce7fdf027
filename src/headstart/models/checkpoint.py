"""From a name to a transformers network that can roll back: find it, refuse what cannot work, load it, check it.

What cannot roll back is refused from its configuration, before weights are read; what only claims to is caught by
`selfcheck`. Code that comes with a model is never run, nothing falls back to another device or number format.
"""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partialmethod
from pathlib import Path
from typing import Any
from unittest.mock import patch

from headstart.errors import ModelError, OptionError
from headstart.models.gguf_reader import QuickReader, quick_gguf
from headstart.models.torch_extra import torch, tqdm, transformers

__all__ = ["Progress", "Source", "device_of", "load_network", "quiet"]

Progress = Callable[[str, float | None], None]

# Loading turns switches of whole libraries (bars, warnings, readers): one load at a time.
_LOADING = threading.Lock()

_ROLLS_BACK = ("full_attention", "sliding_attention")  # layer types whose memory is keys and values of single tokens


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a model is: what transformers calls name, revision and file."""

    name: str  # a folder or a hub id
    gguf_file: str | None  # file name within it
    options: dict[str, Any]  # for every from_pretrained

    @property
    def shown(self) -> str:
        """As it is named in messages."""
        return self.name if self.gguf_file is None else str(Path(self.name) / self.gguf_file)


def load_network(
    ref: str,
    *,
    revision: str | None,
    gguf_file: str | None,
    dtype: str,
    device: str,
    threads: int | None,
    offline: bool,
    context: int | None,
    progress: Progress,
) -> tuple[Any, int]:
    """A network in evaluation mode under transformers' own attention, and the most tokens a sequence may hold.

    Raises ModelError or OptionError as `TransformersModel.load` says."""
    if threads is not None and threads < 1:
        raise OptionError(f"`threads` must be 1 or more, got {threads}")
    place = device_of(device)
    number = _number_format(dtype, place)
    source = _find(ref, revision, gguf_file, offline)
    with ExitStack() as stack:
        stack.enter_context(_LOADING)
        stack.enter_context(quiet())
        if source.gguf_file is not None:
            stack.enter_context(quick_gguf())
        progress("reading the configuration", None)
        config = _config(source)
        reason = _reason(config)
        if reason is not None:
            raise ModelError(
                f"{source.shown!r} is a {config.model_type} model, which {reason}; use a decoder-only model with attention"
            )
        limit = _context_limit(config, context, source.shown)
        if threads is not None:
            torch.set_num_threads(threads)
        progress("reading the weights", None)
        network = _weights(source, config, number).to(place).eval()
        if getattr(config.get_text_config(), "attn_logit_softcapping", None) is not None:
            network.set_attn_implementation("eager")  # the default would ignore or refuse it
    return network, limit


def _number_format(dtype: str, device: Any) -> Any:
    """The torch number format named `dtype` on `device`; 'auto' is bfloat16 where the hardware computes in it natively."""
    if dtype == "auto":
        return torch.bfloat16 if _has_bfloat16(device) else torch.float32
    if dtype not in ("float32", "bfloat16", "float16"):
        raise OptionError(f"`dtype` must be 'auto', 'float32', 'bfloat16' or 'float16', got {dtype!r}")
    if dtype == "float16" and device.type != "cuda":
        raise OptionError(f"`dtype` 'float16' needs a CUDA device, got {str(device)!r}; use 'bfloat16' or 'float32'")
    return getattr(torch, dtype)


def _has_bfloat16(device: Any) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    try:
        words = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return False
    return not words.isdisjoint({"avx512_bf16", "amx_bf16", "bf16"})  # the last is how Arm names it


def device_of(device: str) -> Any:
    """The torch device of that name; auto: a GPU where torch sees one. Raises OptionError."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    match = re.fullmatch(r"cpu|cuda(?::(\d+))?", device)
    if match is None:
        raise OptionError(f"`device` must be 'auto', 'cpu', 'cuda' or 'cuda:N', got {device!r}")
    if device != "cpu":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if int(match[1] or 0) >= count:
            raise OptionError(f"`device` {device!r} is not available: torch sees {count} CUDA devices here; use --device cpu")
    return torch.device(device)


def _find(ref: str, revision: str | None, gguf_file: str | None, offline: bool) -> Source:
    """Where `ref` is. Raises ModelError if it can only be a path and nothing is there."""
    options: dict[str, Any] = {"trust_remote_code": False, "local_files_only": offline}
    path = Path(ref).expanduser()
    if not ref:
        raise ModelError("`target` must be a folder, a .gguf file or a hub id, got ''")
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelError(f"`target` must be a folder, a .gguf file or a hub id, got the file {ref!r}")
        if gguf_file is not None:
            raise OptionError(f"`gguf_file` is for folders and hub ids, got {gguf_file!r} with the file {ref!r}")
        return Source(name=str(path.parent), gguf_file=path.name, options=options)
    if path.is_dir():
        if gguf_file is not None and not (path / gguf_file).is_file():
            raise ModelError(f"`gguf_file` {gguf_file!r} is not in the folder {ref!r}")
        if gguf_file is None and not (path / "config.json").is_file():
            inside = ", ".join(sorted(file.name for file in path.glob("*.gguf"))[:3])
            hint = f"name one of its GGUF files by its full path ({inside})" if inside else "it holds no GGUF file either"
            raise ModelError(f"no model in the folder {ref!r}: it holds no config.json; {hint}")
        return Source(name=str(path), gguf_file=gguf_file, options=options)
    if not re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", ref) or ref.endswith(".gguf"):
        raise ModelError(f"no model at {ref!r}: there is no such file or folder")
    return Source(name=ref, gguf_file=gguf_file, options=options | {"revision": revision or "main"})


def _config(source: Source) -> Any:
    gguf = {} if source.gguf_file is None else {"gguf_file": source.gguf_file}
    try:
        if source.gguf_file is not None and Path(source.shown).is_file():
            QuickReader(source.shown)  # says what is wrong with a damaged file better than what follows
        return transformers.AutoConfig.from_pretrained(source.name, **gguf, **source.options)
    except Exception as error:
        raise _unreadable(source, error) from None


def _unreadable(source: Source, error: Exception) -> ModelError:
    """One line that says what is wrong with a model transformers could not read, and the way out."""
    text = " ".join(str(error).split()).rstrip(".")
    name = repr(source.shown)
    if isinstance(error, ImportError):
        return ModelError(f"{name} needs a package that is not installed ({_short(text)}): pip install 'headstart[transformers]'")
    if "custom code" in text or "trust_remote_code" in text:
        return ModelError(
            f"{name} needs code of its own to run, which is never trusted; use a model of an architecture in transformers"
        )
    if "does not recognize this architecture" in text or "not supported yet" in text or "Unknown gguf" in text:
        return ModelError(f"{name} has an architecture transformers {transformers.__version__} cannot read: {_short(text)}")
    if not Path(source.name).exists():
        if source.options["local_files_only"]:
            return ModelError(f"{name} is neither a path nor in the local cache, and --offline forbids a download")
        return ModelError(f"{name} is no path here and could not be had from the hub: {_short(text)}")
    return ModelError(f"{name} cannot be read: {_short(text) or type(error).__name__}; it may be damaged or incomplete")


def _short(text: str) -> str:
    return text if len(text) <= 200 else text[:200].rsplit(" ", 1)[0] + " …"


def _reason(config: Any) -> str | None:
    """Why the state of a model of this configuration cannot forget its last tokens; None if nothing speaks against it."""
    text = config.get_text_config()
    if getattr(config, "is_encoder_decoder", False):
        return "reads its prompt with an encoder and cannot be rolled back token by token"
    known = transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    if type(config) not in known:
        return "is not a causal language model"
    network = known[type(config)]
    types = getattr(text, "layer_types", None) or ()
    other = sorted(set(types) - set(_ROLLS_BACK))
    if getattr(network, "_is_stateful", False) or other:
        kinds = f" ({', '.join(other)} layers)" if other else ""
        return f"keeps a recurrent or chunked state{kinds} that cannot be rolled back"
    if getattr(text, "attention_chunk_size", None) is not None:
        return "attends in chunks, which are not supported"
    if getattr(text, "num_kv_shared_layers", 0):
        return "shares keys between layers, which is not supported"
    declared = list(getattr(config, "architectures", None) or ())
    if declared and not any(arch.endswith(("CausalLM", "LMHeadModel", "ForConditionalGeneration")) for arch in declared):
        return f"is declared as {declared[0]}, not as a causal language model"
    if getattr(text, "use_bidirectional_attention", None) or not getattr(text, "is_causal", True):
        return "looks ahead (attention in both directions)"
    if not getattr(network, "_supports_attention_backend", False):
        return "does not let its attention be replaced in transformers"
    return None


def _context_limit(config: Any, context: int | None, name: str) -> int:
    text = config.get_text_config()
    limit = getattr(text, "max_position_embeddings", None) or 2**31 - 1
    for rope in _ropes(text):
        # These stretch all positions once a sequence grows past a length, so keys already cached would be wrong.
        if rope.get("rope_type", rope.get("type")) in ("dynamic", "longrope"):
            original = rope.get("original_max_position_embeddings") or getattr(text, "original_max_position_embeddings", None)
            limit = min(limit, original or limit)
    if context is None:
        return int(limit)
    if not 1 <= context <= limit:
        raise OptionError(f"`context` must be from 1 to {limit}, the most {name!r} can hold, got {context}")
    return context


def _ropes(text: Any) -> Iterator[dict[str, Any]]:
    """Every rotary embedding's parameters: one for all layers, or one for each layer type."""
    found = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    yield found
    yield from (inner for inner in found.values() if isinstance(inner, dict))


def _weights(source: Source, config: Any, dtype: Any) -> Any:
    """The network on the CPU. Raises ModelError unless every weight it needs is in the file."""
    options: dict[str, Any] = {"config": config, "dtype": dtype, "output_loading_info": True, "ignore_mismatched_sizes": True}
    if source.gguf_file is not None:
        options["gguf_file"] = source.gguf_file
        # Newer versions can leave weights packed, with kernels fetched from the hub: not what was asked for.
        config_class = getattr(transformers, "GgufConfig", None)
        if config_class is not None:
            options["quantization_config"] = config_class(dequantize=True)
    try:
        network, info = transformers.AutoModelForCausalLM.from_pretrained(source.name, **options, **source.options)
    except Exception as error:
        raise _unreadable(source, error) from None
    # transformers would go on with random numbers in their place.
    lacking = sorted(info["missing_keys"]) + sorted(_name(key) for key in info["mismatched_keys"])
    if lacking:
        raise ModelError(f"{source.shown!r} is incomplete: weights missing or of another shape: {_short(', '.join(lacking))}")
    return network


def _name(key: str | tuple[str, Any, Any]) -> str:
    """A mismatched weight's name: versions of transformers list it alone or with its two shapes."""
    return key if isinstance(key, str) else key[0]


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers' bars and warnings off stderr; they come back afterwards."""
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(50)
    logging.disable_progress_bar()
    try:
        # Not every bar asks transformers' own switch.
        silent = partialmethod(tqdm.tqdm.__init__, disable=True)
        with warnings.catch_warnings(), patch.object(tqdm.tqdm, "__init__", silent):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
