"""Opens files that a stage has written. It may have left links, pipes or devices in their place."""

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import Final

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def open_inside(root: Path, path: str) -> BufferedReader:
    """A regular file under `root`, reached without any link. OSError for everything else.

    Each part of the path is opened in the folder before it: nothing can be exchanged in between.
    """
    parts = PurePosixPath(path).parts
    if not parts or ".." in parts or parts[0] == "/":
        raise OSError(errno.EINVAL, "not a path in the folder", path)
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            inner = os.open(part, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = inner
        descriptor = os.open(parts[-1], _FILE, dir_fd=folder)
    finally:
        os.close(folder)
    file = os.fdopen(descriptor, "rb")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", path)
    return file


def is_inside(root: Path, path: str) -> bool:
    """Whether `open_inside` would open it."""
    try:
        open_inside(root, path).close()
    except OSError:
        return False
    return True
