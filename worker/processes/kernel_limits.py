"""Limits that the kernel enforces for a stage: set before it reads its request, kept by all that it
starts, and never raised again."""

import resource
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

_FIRST_TO_GO: Final = "1000"


def apply(pid: int, limits: Mapping[int, int]) -> None:
    """Lower the limits of a process that has just been started: resource.RLIMIT_… → the most.

    When the machine's memory runs out all the same, the kernel ends this process first.
    """
    if not limits or sys.platform != "linux":
        return
    with suppress(ProcessLookupError, FileNotFoundError):  # it has ended already
        for kind, most in limits.items():
            now = resource.prlimit(pid, kind)
            resource.prlimit(pid, kind, (_least(now[0], most), _least(now[1], most)))
        Path(f"/proc/{pid}/oom_score_adj").write_text(_FIRST_TO_GO)


def _least(now: int, most: int) -> int:
    return most if now == resource.RLIM_INFINITY else min(now, most)
