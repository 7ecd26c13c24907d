"""How many CPUs this process may use; without torch."""

import math
import os
import sys
from pathlib import Path
from typing import Final

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
