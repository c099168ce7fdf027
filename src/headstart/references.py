"""Where a reference lies on this machine: a known name, a .gguf file, a folder in Hugging Face form, or a hub id; and where a
head does: a folder, one of the package's by name, or a hub id.

It fetches what is allowed to be fetched. It does not know models, engines or what the files hold.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headstart import fetch, shipped
from headstart.errors import MissingExtraError, ModelError, OptionError, did_you_mean

__all__ = ["Source", "find", "find_head"]

Progress = Callable[[str, float | None], None]
_MODEL_FILES = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model")
# A head that comes in both forms is fetched in the one that nothing can hide in.
_HEAD_FILES = (("config.json", "*.safetensors"), ("config.json", "*.bin", "*.pt"))


@dataclass(frozen=True, kw_only=True)
class Source:
    """A reference that was found on this machine."""

    ref: str
    kind: Literal["gguf", "folder"]
    path: Path


def find(ref: str, offline: bool, tell: Progress) -> Source:
    """Where a reference lies, fetched if that is allowed and needed. `tell` is called as `progress` of `headstart.load`.

    Raises ModelError for what cannot be found, OptionError for no name, FetchError for what cannot be fetched."""
    if not ref:
        raise OptionError(f"`target` must not be empty; name a model ({', '.join(fetch.KNOWN)}), a path or a hub id")
    if ref in fetch.KNOWN:
        return Source(ref=ref, kind="gguf", path=fetch.find(ref) or fetch.fetch(ref, offline=offline, progress=tell))
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
        return Source(ref=ref, kind="folder", path=path.resolve())
    if os.path.isfile(path):
        if path.suffix.lower() != ".gguf":
            raise ModelError(f"{ref} is a file but not a .gguf file; name a .gguf file or a Hugging Face folder")
        return Source(ref=ref, kind="gguf", path=path.resolve())
    if _hub_id(ref):
        return Source(ref=ref, kind="folder", path=_hub_folder(ref, _MODEL_FILES, offline, tell))
    hint = did_you_mean(ref, fetch.KNOWN)
    raise ModelError(
        f"no model {ref!r:.200} here{hint or ';'} name a known model ({', '.join(fetch.KNOWN)}), a .gguf file, "
        "a Hugging Face folder or a hub id owner/name[@revision]"
    )


def find_head(ref: str, offline: bool, tell: Progress) -> Path:
    """The folder a head lies in, fetched if that is allowed and needed. Raises ModelError."""
    path = Path(ref).expanduser()
    found = path if os.path.isdir(path) else shipped.folder_of(ref)
    if found is not None:
        return found
    if _hub_id(ref):
        for files in _HEAD_FILES:
            found = _hub_folder(ref, files, offline, tell)
            if any(any(found.glob(pattern)) for pattern in files[1:]):
                return found
        raise ModelError(f"the hub's {ref} holds no weights of a head (.safetensors, .bin or .pt)")
    known = f", one of the package's ({', '.join(shipped.names())})" if shipped.names() else ""
    raise ModelError(f"no head {ref!r:.200} here; name the folder that holds its config.json{known} or a hub id owner/name")


def _hub_id(ref: str) -> bool:
    """Whether it reads as owner/name[@revision], and not as a path."""
    return not ref.startswith((".", "/", "~")) and Path(ref).suffix.lower() != ".gguf" and ref.count("/") == 1


def _hub_folder(ref: str, wanted: Sequence[str], offline: bool, tell: Progress) -> Path:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError
    except ImportError:
        raise MissingExtraError("huggingface_hub", "transformers", f"fetching {ref} from the hub") from None
    repository, _, revision = ref.partition("@")
    tell(f"looking up {ref} on the hub", None)
    try:
        return Path(
            snapshot_download(repository, revision=revision or None, allow_patterns=list(wanted), local_files_only=offline)
        )
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise ModelError(f"the hub has no {ref}: {str(error).splitlines()[0]}") from None
    except LocalEntryNotFoundError:
        way_out = "drop --offline to fetch it" if offline else "check the network, or name a local folder"
        raise ModelError(f"{ref} is not on this machine and could not be fetched; {way_out}") from None
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise ModelError(f"{ref} could not be fetched from the hub: {str(error).splitlines()[0]}") from None
