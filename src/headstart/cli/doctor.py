"""`headstart doctor`: what this machine and this installation can do.

It reads names and versions; it imports no extra, loads no model and starts no measurement.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import click

from headstart import __version__, fetch
from headstart.cli.options import JSON, write_json

__all__ = ["command", "processor_name"]

_BASE = ("numpy", "tokenizers", "jinja2", "click", "rich")
_EXTRAS = {
    "transformers": ("torch", "transformers", "accelerate", "gguf", "safetensors"),
    "train": ("torch", "matplotlib"),
    "plot": ("matplotlib",),
    "bench": ("llama-cpp-python",),
    "openvino": ("openvino-genai",),
}
# What the kernels of this project and of its peers look for; names as Linux writes them.
_X86 = (
    "sse4_2", "avx", "f16c", "fma", "avx2", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16",
    "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16",
)  # fmt: skip
_ARM = ("asimd", "asimdhp", "asimddp", "i8mm", "bf16", "sve", "sve2", "sme")


@click.command("doctor")
@JSON
def command(as_json: bool) -> None:
    """What this machine and this installation can do: versions, extras, CPU, memory, GPUs, models."""
    found = {
        "versions": {"headstart": __version__, "python": platform.python_version(), **{name: _version(name) for name in _BASE}},
        "extras": {extra: _extra(extra, packages) for extra, packages in _EXTRAS.items()},
        "system": _system(),
        "cpu": _cpu(),
        "native": _native(),
        "memory": _memory(),
        "gpus": _gpus(),
        "models": {
            "folder": str(fetch.models_folder()),
            "known": {name: str(path) if (path := fetch.find(name)) else None for name in fetch.KNOWN},
            "files": [str(local.path) for local in fetch.local_models()],
        },
    }
    if as_json:
        write_json(found)
    else:
        _show(found)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _extra(extra: str, packages: tuple[str, ...]) -> dict[str, Any]:
    """An extra's packages with their versions (null: missing), and the line that brings what is missing."""
    versions = {package: _version(package) for package in packages}
    whole = all(versions.values())
    return {"installed": whole, "packages": versions, "install": None if whole else f"pip install 'headstart[{extra}]'"}


def _system() -> dict[str, Any]:
    return {"platform": platform.system(), "release": platform.release(), "machine": platform.machine()}


# CPU


def processor_name() -> str:
    """The processor as the system calls it."""
    return _cpu()["name"] or platform.machine()


def _cpu() -> dict[str, Any]:
    """Model, cores and the vector features that are there. Cores are null where the system does not say."""
    if sys.platform == "darwin":
        name, flags, physical = _cpu_macos()
    else:
        name, flags, physical = _cpu_linux()
    known = _ARM if platform.machine().lower() in ("arm64", "aarch64") else _X86
    return {
        "name": name,
        "physical_cores": physical,
        "logical_cores": os.cpu_count(),
        "threads": _threads(),
        "features": [feature for feature in known if feature in flags],
    }


def _threads() -> int | None:
    """How many threads of this process can run at once: its affinity mask, and the quota of its container."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count()
    cores = len(os.sched_getaffinity(0))
    quota = _read("/sys/fs/cgroup/cpu.max").split()
    if len(quota) == 2 and quota[0].isdigit() and int(quota[1]) > 0:
        cores = max(1, min(cores, round(int(quota[0]) / int(quota[1]))))
    return cores


def _cpu_linux() -> tuple[str | None, set[str], int | None]:
    text = _read("/proc/cpuinfo")
    fields: dict[str, str] = dict(re.findall(r"^([^\t:]+)\t*: (.+)$", text, flags=re.MULTILINE))
    flags = set((fields.get("flags") or fields.get("Features") or "").split())
    blocks = text.split("\n\n")
    cores = {(_field(block, "physical id"), _field(block, "core id")) for block in blocks if _field(block, "core id")}
    return fields.get("model name") or platform.processor() or None, flags, len(cores) or None


def _field(block: str, name: str) -> str | None:
    match = re.search(rf"^{name}\s*: (.+)$", block, flags=re.MULTILINE)
    return match[1] if match else None


def _cpu_macos() -> tuple[str | None, set[str], int | None]:
    text = _output("sysctl", "-a") or ""
    fields: dict[str, str] = dict(re.findall(r"^([\w.]+): (.+)$", text, flags=re.MULTILINE))
    intel = f"{fields.get('machdep.cpu.features', '')} {fields.get('machdep.cpu.leaf7_features', '')}".lower()
    flags = set(intel.replace("avx1.0", "avx").replace("sse4.2", "sse4_2").split())
    arm = {"AdvSIMD": "asimd", "FEAT_FP16": "asimdhp", "FEAT_DotProd": "asimddp", "FEAT_I8MM": "i8mm", "FEAT_BF16": "bf16"}
    arm |= {"FEAT_SME": "sme"}
    flags |= {name for key, name in arm.items() if fields.get(f"hw.optional.arm.{key}") == "1"}
    flags |= {"asimd"} if platform.machine() == "arm64" else set()
    cores = fields.get("hw.physicalcpu", "")
    return fields.get("machdep.cpu.brand_string"), flags, int(cores) if cores.isdigit() else None


# memory and GPUs


def _native() -> dict[str, Any]:
    """The native engine: whether it is built, the instruction sets it has for this CPU, and the one it uses."""
    try:
        from headstart import _core
    except ImportError as error:
        return {"built": False, "instruction_set": None, "instruction_sets": [], "reason": str(error)}
    return {"built": True, "instruction_set": _core.best_instruction_set(), "instruction_sets": _core.instruction_sets()}


def _memory() -> dict[str, int | None]:
    """Bytes in all and available; null where the system does not say."""
    if sys.platform == "darwin":
        total = (_output("sysctl", "-n", "hw.memsize") or "").strip()
        return {"total": int(total) if total.isdigit() else None, "available": None}
    sizes = {name: int(size) * 1024 for name, size in re.findall(r"^(\w+):\s+(\d+) kB$", _read("/proc/meminfo"), re.MULTILINE)}
    return {"total": sizes.get("MemTotal"), "available": sizes.get("MemAvailable")}


def _gpus() -> list[dict[str, Any]]:
    """NVIDIA GPUs as nvidia-smi lists them; empty without it."""
    query = "--query-gpu=name,memory.total,driver_version,compute_cap"
    text = _output("nvidia-smi", query, "--format=csv,noheader,nounits") or ""
    gpus = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == 4:
            memory = int(parts[1]) * 2**20 if parts[1].isdigit() else None
            gpus.append({"name": parts[0], "memory": memory, "driver": parts[2], "compute_capability": parts[3]})
    return gpus


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _output(*command: str) -> str | None:
    """stdout of a system program; None if it is not there, fails, or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


# the view for people


def _show(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for title, lines in _lines(found):
        for place, line in enumerate(lines):
            table.add_row(title if place == 0 else "", line)
    # A pipe has no edge to fold at.
    Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 500).print(table)


def _lines(found: dict[str, Any]) -> list[tuple[str, list[str]]]:
    versions, system, cpu, memory = found["versions"], found["system"], found["cpu"], found["memory"]
    rest = ", ".join(f"{name} {version or 'missing'}" for name, version in versions.items() if name in _BASE)
    cores = f"{cpu['threads'] or '?'} can run at once, on {cpu['logical_cores'] or '?'} logical"
    cores += f" and {cpu['physical_cores']} physical cores" if cpu["physical_cores"] else " cores"
    return [
        ("headstart", [versions["headstart"], f"Python {versions['python']}, {rest}"]),
        ("extras", [_extra_line(name, extra) for name, extra in found["extras"].items()]),
        ("system", [f"{system['platform']} {system['release']} on {system['machine']}"]),
        ("threads", [cores]),
        ("CPU", [cpu["name"] or "unknown", " ".join(cpu["features"]) or "no vector features known here"]),
        ("native", [_native_line(found["native"])]),
        ("memory", [f"{_gigabytes(memory['available'])} available of {_gigabytes(memory['total'])}"]),
        ("GPU", [f"{gpu['name']}, {_gigabytes(gpu['memory'])}" for gpu in found["gpus"]] or ["none (nvidia-smi lists none)"]),
        ("models", _model_lines(found["models"])),
    ]


def _native_line(native: dict[str, Any]) -> str:
    if not native["built"]:
        return f"the engine is not built: {native['reason']}; pip install . builds it"
    others = [name for name in native["instruction_sets"] if name != native["instruction_set"]]
    return f"engine with {native['instruction_set']} kernels" + (f" (also here: {', '.join(others)})" if others else "")


def _extra_line(name: str, extra: dict[str, Any]) -> str:
    there = ", ".join(f"{package} {version}" for package, version in extra["packages"].items() if version)
    if extra["installed"]:
        return f"{name}: {there}"
    missing = ", ".join(package for package, version in extra["packages"].items() if not version)
    return f"{name}: missing {missing}; {extra['install']}"


def _gigabytes(size: int | None) -> str:
    return "?" if size is None else f"{size / 1e9:.1f} GB"


def _model_lines(models: dict[str, Any]) -> list[str]:
    known = [
        f"{name}: {'here' if path else f'not here; headstart models fetch {name}'}" for name, path in models["known"].items()
    ]
    others = [Path(path).name for path in models["files"] if path not in models["known"].values()]
    return [f"in {models['folder']}", *known, *others]
