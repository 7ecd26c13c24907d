"""Files that are being received. A lock distinguishes them from those that a killed process has
left."""

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

PREFIX: Final = ".upload-"
"""Files with their final names are never removed: only the right database knows whether they are
needed, and this one may be a different one."""


def create(path: Path) -> BinaryIO:
    """A new file that belongs to this process as long as it is open."""
    while True:
        file = path.open("xb")
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()  # swept between the two calls


def sweep(folder: Path) -> None:
    """Remove files that no process is receiving any more."""
    for path in folder.glob(f"{PREFIX}*"):
        with suppress(OSError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
