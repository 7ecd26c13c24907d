"""Files that are being received. A lock tells them from those that a killed process has left."""

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

PREFIX: Final = ".upload-"
"""Nothing that has a file's own name is removed: whether it is needed only the right database
knows, and this one may be another."""


def create(path: Path) -> BinaryIO:
    """A new file that belongs to this process as long as it is open."""
    while True:
        file = path.open("xb")
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()  # swept between the two calls


def sweep(folder: Path) -> None:
    """Remove what no process receives any more."""
    for path in folder.glob(f"{PREFIX}*"):
        with suppress(OSError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
