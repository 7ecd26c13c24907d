"""The CPUs that this process may use: how many, and what they are called; without torch."""

import math
import os
import platform
import sys
from pathlib import Path
from typing import Final

_CPUINFO: Final = Path("/proc/cpuinfo")
# Linux, control groups v2: "<quota> <period>" or "max <period>", in microseconds.
_CPU_LIMIT: Final = Path("/sys/fs/cgroup/cpu.max")


def cores(limit: Path = _CPU_LIMIT) -> int:
    """CPUs that this process may use, by its affinity and by its container's limit."""
    count = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    if limit.is_file():
        quota, period = limit.read_text().split()
        if quota != "max":
            count = min(count, math.ceil(int(quota) / int(period)))
    return count


def cpu_name(cpuinfo: Path = _CPUINFO) -> str:
    """As the kernel tells it; where it does not, the machine's kind."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
