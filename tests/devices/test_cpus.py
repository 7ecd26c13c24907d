"""worker.devices.cpus, on files as the kernel writes them."""

from pathlib import Path

import pytest

from worker.devices.cpus import cores, cpu_flags, cpu_name

X86 = """processor\t: 0
model name\t: Some CPU
vmx flags\t: vnmi
flags\t\t: fpu amx_bf16

processor\t: 1
model name\t: Another
flags\t\t: none
"""
ARM = "processor\t: 0\nFeatures\t: fp asimd\n"


@pytest.mark.parametrize(
    ("limit", "expected"), [("max 100000", 3), ("150000 100000", 2), ("900000 100000", 3)]
)
def test_cores_by_affinity_and_the_containers_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, expected: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2})
    (tmp_path / "cpu.max").write_text(limit + "\n")
    assert cores(tmp_path / "cpu.max") == expected
    assert cores(tmp_path / "missing") == 3


@pytest.mark.parametrize(
    ("cpuinfo", "flags"), [(X86, ["fpu", "amx_bf16"]), (ARM, ["fp", "asimd"]), ("", [])]
)
def test_flags_of_the_first_cpu(tmp_path: Path, cpuinfo: str, flags: list[str]) -> None:
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    assert cpu_flags(tmp_path / "cpuinfo") == flags
    assert cpu_flags(tmp_path / "missing") == []


def test_name_of_the_first_cpu(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(X86)
    assert cpu_name(tmp_path / "cpuinfo") == "Some CPU"
    assert cpu_name(tmp_path / "missing") not in ("", "Some CPU")
