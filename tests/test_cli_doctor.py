"""`headstart doctor`: names what is there and the line that brings what is missing, without importing any of it."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from typing import Any

import pytest

from headstart.cli import doctor
from headstart.cli.main import run

X86_CPUINFO = """processor\t: {place}
model name\t: Testium 9000
physical id\t: 0
core id\t\t: {core}
flags\t\t: fpu avx2 fma avx512_vnni amx_tile made_up
"""
ARM_CPUINFO = "processor\t: 0\nFeatures\t: fp asimd asimddp i8mm\nCPU part\t: 0xd40\n"


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Stands in for the files of /proc and /sys; a file that is not listed cannot be read."""
    files: dict[str, str] = {}
    monkeypatch.setattr(doctor, "_read", lambda path: files.get(path, ""))
    monkeypatch.setattr(sys, "platform", "linux")
    return files


def report(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert run(["doctor", "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_report_of_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys)
    assert list(found) == ["versions", "extras", "system", "cpu", "native", "memory", "gpus", "models"]
    assert found["versions"]["numpy"] == metadata.version("numpy")
    assert all(found["versions"].values())
    assert found["cpu"]["threads"] >= 1
    assert found["native"]["built"]
    assert found["native"]["instruction_set"] in found["native"]["instruction_sets"]
    assert list(found["models"]["known"]) == ["smollm2"]


def test_every_line_for_people_says_something(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    titles = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert titles == ["headstart", "extras", "system", "threads", "CPU", "native", "memory", "GPU", "models"]
    assert all(line.strip() for line in lines)
    assert "None" not in " ".join(lines)


def test_no_extra_is_imported() -> None:
    script = (
        "import sys; from headstart.cli.main import run; run(['doctor']); "
        "print([name for name in ('torch', 'transformers', 'matplotlib', 'gguf') if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_a_missing_extra_comes_with_its_pip_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    version = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda package: None if package in ("torch", "matplotlib") else version(package))
    extra = report(capsys)["extras"]["transformers"]
    assert not extra["installed"]
    assert extra["packages"]["torch"] is None
    assert extra["install"] == "pip install 'headstart[transformers]'"
    assert run(["doctor"]) == 0
    assert "transformers: missing torch; pip install 'headstart[transformers]'" in capsys.readouterr().out


def test_the_packages_of_an_extra_are_those_of_the_distribution() -> None:
    required = metadata.requires("headstart") or []
    for extra, packages in doctor._EXTRAS.items():
        declared = {line.split(">")[0].strip() for line in required if f"extra == '{extra}'" in line.replace('"', "'")}
        assert set(packages) == declared


class TestCpu:
    def test_x86(self, files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("platform.machine", lambda: "x86_64")
        files["/proc/cpuinfo"] = "\n".join(X86_CPUINFO.format(place=place, core=place // 2) for place in range(4))
        cpu = doctor._cpu()
        assert cpu["name"] == "Testium 9000"
        assert cpu["physical_cores"] == 2
        assert cpu["features"] == ["fma", "avx2", "avx512_vnni", "amx_tile"]

    def test_arm(self, files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("platform.machine", lambda: "aarch64")
        files["/proc/cpuinfo"] = ARM_CPUINFO
        cpu = doctor._cpu()
        assert cpu["features"] == ["asimd", "asimddp", "i8mm"]
        assert cpu["physical_cores"] is None

    def test_macos(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "platform", "darwin")
        monkeypatch.setattr("platform.machine", lambda: "arm64")
        text = "hw.physicalcpu: 8\nmachdep.cpu.brand_string: Apple M9\nhw.optional.arm.FEAT_DotProd: 1\nhw.memsize: 17179869184\n"
        monkeypatch.setattr(doctor, "_output", lambda *command: "17179869184\n" if "-n" in command else text)
        cpu = doctor._cpu()
        assert (cpu["name"], cpu["physical_cores"], cpu["features"]) == ("Apple M9", 8, ["asimd", "asimddp"])
        assert doctor._memory() == {"total": 2**34, "available": None}

    @pytest.mark.parametrize(("quota", "most"), [("max 100000", None), ("100000 100000", 1), ("50000 100000", 1), ("", None)])
    def test_the_quota_of_a_container_limits_threads(self, files: dict[str, str], quota: str, most: int | None) -> None:
        unlimited = doctor._threads()
        files["/sys/fs/cgroup/cpu.max"] = quota
        assert doctor._threads() == (most or unlimited)


def test_a_system_that_says_nothing(files: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor._memory() == {"total": None, "available": None}
    assert doctor._cpu()["features"] == []
    assert run(["doctor"]) == 0
    assert "? available of ?" in capsys.readouterr().out


def test_gpus_as_nvidia_smi_lists_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_output", lambda *command: "NVIDIA H200, 143771, 570.1, 9.0\nOdd, [N/A], 1, 2\n")
    assert doctor._gpus() == [
        {"name": "NVIDIA H200", "memory": 143771 * 2**20, "driver": "570.1", "compute_capability": "9.0"},
        {"name": "Odd", "memory": None, "driver": "1", "compute_capability": "2"},
    ]
    monkeypatch.setattr(doctor, "_output", lambda *command: None)
    assert doctor._gpus() == []
