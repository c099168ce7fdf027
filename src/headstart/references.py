"""Where a reference lies on this machine: a known name, a .gguf file, a folder in Hugging Face form, or a hub id.

It fetches what is allowed to be fetched. It does not know models, engines or what the files hold.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headstart import fetch
from headstart.errors import MissingExtraError, ModelError, OptionError, did_you_mean

__all__ = ["Source", "find"]

Progress = Callable[[str, float | None], None]


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
    looks_like_path = ref.startswith((".", "/", "~")) or path.suffix.lower() == ".gguf" or ref.count("/") != 1
    if not looks_like_path:
        return Source(ref=ref, kind="folder", path=_hub_folder(ref, offline, tell))
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
