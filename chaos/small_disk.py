"""A disk that is soon full: a small tmpfs."""

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.packages import UnavailableError

FILLER = "filler"


class NoMountError(UnavailableError):
    """This user may not mount anything, or not here."""


@contextmanager
def small_disk(folder: Path, mebibytes: int) -> Iterator[Path]:
    """`folder`, empty and with so much space, for as long as the block runs.

    NoMountError where this user may not mount.
    """
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "none", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        raise NoMountError("mounting a small disk needs root and CAP_SYS_ADMIN")
    try:
        yield folder
    finally:
        # Lazily: what a test has started may hold a log open until it has ended, too.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def leave_free(disk: Path, left: int) -> None:
    """Fill it up to `left` bytes, in whole pages, whoever else writes to it meanwhile."""
    free_again(disk)
    with (disk / FILLER).open("wb") as filler:
        while True:
            state = os.statvfs(disk)
            size = state.f_bavail * state.f_frsize - left
            if size <= 0:
                return
            try:
                os.posix_fallocate(filler.fileno(), 0, size)
            except OSError as error:
                # Somebody took some of it between the two calls.
                if error.errno != errno.ENOSPC:
                    raise
            else:
                return


def free_again(disk: Path) -> None:
    (disk / FILLER).unlink(missing_ok=True)
