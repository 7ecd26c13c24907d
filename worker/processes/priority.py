"""The priority of a process that shares the CPU with trainings."""

import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

_LOWEST: Final = 19
_TRIES: Final = 3
_AGAIN_SECONDS: Final = 0.11
"""The kernel takes one change in a tenth of a second, of all users but root."""


def lower(pid: int, by: int) -> None:
    """Of a process that has just been started in a session of its own; what it starts keeps it.

    Where the kernel groups processes by session (`sched_autogroup_enabled`, as most distributions
    have it), a process's own value counts within its session only, and that of the group besides.
    """
    if not by or sys.platform != "linux":
        return
    nice = by
    with suppress(ProcessLookupError):  # it has ended already
        nice = min(_LOWEST, os.getpriority(os.PRIO_PROCESS, pid) + by)
        os.setpriority(os.PRIO_PROCESS, pid, nice)
    for _ in range(_TRIES):
        try:
            Path(f"/proc/{pid}/autogroup").write_text(str(nice))
        except BlockingIOError:
            time.sleep(_AGAIN_SECONDS)
        except OSError:  # a kernel without groups, or it has ended
            return
        else:
            return
