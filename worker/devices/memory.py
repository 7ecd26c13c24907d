"""The memory of this machine, or of the container that this process runs in."""

import sys
from pathlib import Path
from typing import Final

import psutil

# Linux cgroups: the container's own group, as seen inside it.
_CONTAINER: Final = Path("/sys/fs/cgroup")
# Of version 2 and version 1: the container's limit in bytes, or `max`.
_LIMITS: Final = (_CONTAINER / "memory.max", _CONTAINER / "memory" / "memory.limit_in_bytes")


def total_bytes() -> int:
    """The machine's, or the container's limit if that is less."""
    return min(int(psutil.virtual_memory().total), container_limit() or sys.maxsize)


def container_limit(files: tuple[Path, ...] = _LIMITS) -> int | None:
    """Bytes that the container's processes may use together; None without a limit."""
    for file in files:
        if file.is_file():
            text = file.read_text(encoding="ascii").strip()
            # Version 1 writes "no limit" as a number near the size of the address space.
            return int(text) if text.isdecimal() and int(text) < 1 << 60 else None
    return None


def free_bytes(container: Path = _CONTAINER) -> int:
    """Memory that this process can still use: the machine's, or its container's if that is less."""
    free = int(psutil.virtual_memory().available)
    limit = container / "memory.max"
    if limit.is_file() and (most := limit.read_text().strip()) != "max":
        words = (container / "memory.stat").read_text().split()
        kinds = dict(zip(words[::2], map(int, words[1::2]), strict=True))
        # Cached file pages are freed when memory is short, except those of a tmpfs.
        cached = kinds["file"] - kinds["shmem"]
        used = int((container / "memory.current").read_text()) - cached
        free = min(free, int(most) - used)
    return free
