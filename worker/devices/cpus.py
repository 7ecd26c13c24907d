"""How many CPUs this process may use, and their name; without torch."""

import math
import os
import platform
import sys
from pathlib import Path
from typing import Final

CPUINFO: Final = Path("/proc/cpuinfo")
# Linux, control groups v2: "<quota> <period>" or "max <period>", in microseconds.
_CPU_LIMIT: Final = Path("/sys/fs/cgroup/cpu.max")


def affinity() -> int:
    """CPUs that this process is allowed to run on."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def cores(limit: Path = _CPU_LIMIT) -> int:
    """CPUs that this process may use, given its affinity and its container's limit."""
    count = affinity()
    if limit.is_file():
        quota, period = limit.read_text().split()
        if quota != "max":
            count = min(count, math.ceil(int(quota) / int(period)))
    return count


def cpu_name(cpuinfo: Path = CPUINFO) -> str:
    """The name that the kernel reports, else the machine's architecture."""
    return _field(cpuinfo, "model name") or platform.processor() or platform.machine()


def cpu_microcode(cpuinfo: Path = CPUINFO) -> str:
    """The version of the first CPU's microcode; empty where the kernel does not report it."""
    return _field(cpuinfo, "microcode")


def cpu_flags(cpuinfo: Path = CPUINFO) -> list[str]:
    """The instruction sets of the first CPU; empty where the kernel does not report them."""
    return (_field(cpuinfo, "flags") or _field(cpuinfo, "Features")).split()


def _field(cpuinfo: Path, name: str) -> str:
    """Of the first CPU that has it; empty if none does."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return ""
    values = (line.partition(":")[2].strip() for line in lines if line.startswith(name))
    return next(values, "")
