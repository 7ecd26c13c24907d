"""What Linux's /proc tells about processes. Called on Linux only."""

import ctypes
import os
from pathlib import Path

# Fields of /proc/self/stat (proc(5)), counted from the one behind the name, the third.
_ARG_START, _ARG_END = 48 - 3, 49 - 3


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
