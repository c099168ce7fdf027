"""The Arm instruction sets, by emulation: cross-compiled, run under qemu, compared with portable code to the bit.

`cross/check_sets.cpp` does the comparing, over every kernel and over whole passes of small models. What emulation does not show:
speed, and threads that see each other's writes in an order which only real hardware allows.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.native.random_gguf import shape_of, write

ROOT = Path(__file__).parents[2]
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
MISSING = [tool for tool in (COMPILER, EMULATOR) if shutil.which(tool) is None]
SETS = ("neon", "neondot")

pytestmark = pytest.mark.skipif(
    bool(MISSING), reason=f"no {' and no '.join(MISSING)} here; apt-get install g++-aarch64-linux-gnu qemu-user"
)


def cmake_list(name: str) -> list[str]:
    """The words of `set(name …)` in CMakeLists.txt."""
    match = re.search(rf"^set\({name}\b([^)]*)\)", (ROOT / "CMakeLists.txt").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert match, f"CMakeLists.txt has no set({name} …)"
    return match[1].split()


def compile_one(source: Path, target: Path, flags: list[str]) -> Path:
    """Little optimisation, which compiles fast; a backend gives the same bits at any level. Warnings are CMakeLists.txt's."""
    warnings = ["-Wall", "-Wextra", "-Wno-uninitialized", "-Wno-maybe-uninitialized", "-Werror"]
    command = [COMPILER, "-std=c++20", "-O1", "-ffp-contract=off", *warnings, f"-I{ROOT / 'csrc'}", *flags]
    done = subprocess.run([*command, "-c", str(source), "-o", str(target)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """check_sets for Arm, from the sources and with the flags that CMakeLists.txt names."""
    folder = tmp_path_factory.mktemp("arm")
    has = [f"-DHEADSTART_HAS_{name.upper()}" for name in SETS]
    sources = [(ROOT / name, has) for name in cmake_list("sources")]
    sources += [(ROOT / f"csrc/kernels_{name}.cpp", cmake_list(f"flags_{name}")) for name in SETS]
    sources += [(ROOT / "tests/native/cross/check_sets.cpp", has)]
    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(lambda job: compile_one(job[0], folder / f"{job[0].stem}.o", job[1]), sources))
    command = [COMPILER, "-static", "-pthread", *map(str, objects), "-o", str(folder / "check_sets")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "check_sets"


def emulate(program: Path, *words: object, cpu: str = "max") -> tuple[int, list[str]]:
    """Exit status and lines of check_sets on that processor."""
    command = [EMULATOR, "-cpu", cpu, str(program), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    return done.returncode, (done.stdout + done.stderr).splitlines()


@pytest.mark.parametrize("cpu", ["max", "cortex-a76", "cortex-a72"])
def test_the_processor_says_which_sets_it_runs(program: Path, cpu: str) -> None:
    """A Cortex-A72 has no dot product and is not asked for one."""
    expected = ["neondot", "neon", "portable"]
    assert emulate(program, "sets", cpu=cpu) == (0, expected[1:] if cpu == "cortex-a72" else expected)


@pytest.mark.parametrize("cpu", ["max", "cortex-a72"])
def test_every_kernel_gives_the_portable_bits(program: Path, cpu: str) -> None:
    """Products of 1 to 33 rows of every weight type, and every other kernel at its tails and edges."""
    status, lines = emulate(program, "kernels", cpu=cpu)
    assert status == 0, "\n".join(lines)
    assert {line.split()[0] for line in lines} == {*SETS, "portable"} - ({"neondot"} if cpu == "cortex-a72" else set())
    assert len(lines) >= 26
    assert all(line.endswith(" 0 differ") for line in lines)


def test_whole_passes_give_the_portable_rows(program: Path, tmp_path: Path) -> None:
    """Chains, trees, kept paths and batches: the rows of one token a pass on portable code, on one thread and on two."""
    kinds = {"llama": "Q4_K", "qwen2": "Q8_0", "qwen3": "Q5_1", "gemma3": "Q6_K"}
    sizes = {"layers": 2, "hidden": 256, "ff": 256, "vocab": 50}
    files = [write(tmp_path / f"{name}.gguf", shape_of(name, **sizes), kind).path for name, kind in kinds.items()]
    for threads, some in ((1, files[1:]), (2, files[:1])):
        status, lines = emulate(program, "models", threads, *some)
        assert status == 0, "\n".join(lines)
        assert len(lines) == 3 * len(some)


def test_twins_are_caught(program: Path, tmp_path: Path) -> None:
    """A fault in one kernel, mostly in one corner, is found by that kernel's check; attention's by whole passes too."""
    file = write(tmp_path / "llama.gguf", shape_of("llama", layers=1), "Q4_0").path
    status, lines = emulate(program, "twins", file)
    assert status == 0, "\n".join(lines)
    assert lines[-1].endswith("twins, all found")
