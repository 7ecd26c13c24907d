"""Prepared data on disk, and the lock that keeps it from being removed while it is used.

`<cache>/prepared/<key>` of a project (`project_cache`) holds an entry. A process holds the lock of
`<key>.lock` while it looks for an entry, builds it or removes it; one that uses the entry leaves
the time in the lock file's mtime. Lock files stay: two processes could hold a lock whose file was
replaced.

Stages write these folders, so the service follows no link there and opens nothing but files.
"""

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

FOLDER: Final = "prepared"
COMPILED: Final = "compiled"
"""`<cache>/compiled/<key>`: what torch.compile has made (`compile_cache`), in the same
way."""
REFERENCE: Final = "reference"
"""`<cache>/reference/<key>`: log-probabilities of a model before its training
(`reference_values`), in the same way; `<key>-blocks`, with a lock of its own, until all of it is
computed."""
_LOCK: Final = ".lock"
_CLOCK: Final = ".clock"


@contextmanager
def locked(root: Path, key: str) -> Iterator[None]:
    """Wait for the entry's lock, hold it, and set the time of last use at the end."""
    path = _lock_file(root, key)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _opened(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # released with the file, also when the process dies
        yield
        os.utime(path)


@contextmanager
def locked_if_free(root: Path, key: str) -> Iterator[bool]:
    """Whether the lock is free; the time of the last use does not change."""
    with _opened(_lock_file(root, key)) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def idle_seconds(root: Path, key: str) -> float:
    """Since the last use, by the clock of the file system, which has noted the time of it.

    An entry whose lock file is missing is as old as itself.
    """
    path = _lock_file(root, key)
    used = (path if path.exists() else root / key).lstat().st_mtime
    clock = root / _CLOCK
    with _opened(clock) as file:
        os.utime(file.fileno())
    return clock.lstat().st_mtime - used


def _opened(path: Path) -> IO[bytes]:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    file = os.fdopen(os.open(path, flags, 0o666), "ab")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "is not a file", str(path))
    return file


def _lock_file(root: Path, key: str) -> Path:
    return root / f"{key}{_LOCK}"
