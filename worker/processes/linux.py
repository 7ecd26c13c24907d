"""What Linux offers to keep parents and children together. Elsewhere nothing of it is called."""

import ctypes
import os
import signal
import sys
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
# Fields of /proc/self/stat (proc(5)), counted from the one behind the name, the third.
_ARG_START, _ARG_END = 48 - 3, 49 - 3
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with_parent(parent: int) -> bool:
    """SIGKILL this process when `parent` ends; False if that is not its parent (any more).

    It is a thread's end that counts: the one that forked, or the first of whoever adopted.
    """
    if _LIBC is None:
        return True
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent


def adopt_orphans() -> None:
    """Descendants whose parent ends become children of this process."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def set_command_line(words: list[str]) -> None:
    """What `ps` shows of this process, cut to the room that its first words took."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
    line = b"".join(os.fsencode(word) + b"\0" for word in words)[: end - start - 1]
    ctypes.memmove(start, line.ljust(end - start, b"\0"), end - start)


def resident_bytes(pid: int) -> int:
    """Memory of a process that is in RAM, shared pages included; 0 when it has ended."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def threads() -> list[str]:
    """The names of this process's threads, the first one's first."""
    tasks = sorted(Path("/proc/self/task").iterdir(), key=lambda task: int(task.name))
    return [(task / "comm").read_text().strip() for task in tasks]
