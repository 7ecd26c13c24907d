"""Reads processes from Linux's /proc. Call it on Linux only."""

import ctypes
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
# Fields of /proc/self/stat (proc(5)), counted from the third, which follows the name.
_STARTED, _ARG_START, _ARG_END = 22 - 3, 48 - 3, 49 - 3


def set_command_line(words: list[str]) -> None:
    """Set the command line that `ps` shows, cut to the size of the original one."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
    line = b"".join(os.fsencode(word) + b"\0" for word in words)[: end - start - 1]
    ctypes.memmove(start, line.ljust(end - start, b"\0"), end - start)


def started(pid: int) -> int | None:
    """When a process was started, in clock ticks since boot; None if it has ended.

    With the pid it names one process, whoever has the pid next.
    """
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[_STARTED])
    except OSError:
        return None


def resident_bytes(pid: int) -> int:
    """Resident memory of a process, including shared pages; 0 if it has ended."""
    with suppress(OSError), open(f"/proc/{pid}/statm", "rb") as file:  # noqa: PTH123, half as long
        return int(file.read().split()[1]) * _PAGE
    return 0


def threads() -> list[str]:
    """The names of this process's threads, the main thread first."""
    tasks = sorted(Path("/proc/self/task").iterdir(), key=lambda task: int(task.name))
    return [(task / "comm").read_text().strip() for task in tasks]
