"""A small tmpfs, which is easy to fill."""

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.servers.packages import UnavailableError

FILLER = "filler"


class NoMountError(UnavailableError):
    """This user may not mount a file system here."""


@contextmanager
def small_disk(folder: Path, mebibytes: int) -> Iterator[Path]:
    """`folder`, empty and of this size, while the block runs.

    NoMountError where this user may not mount.
    """
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "none", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        raise NoMountError("mounting a small disk needs root and CAP_SYS_ADMIN")
    try:
        yield folder
    finally:
        # Lazily: a process that a test has started may still have a log open.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def leave_free(disk: Path, left: int) -> None:
    """Fill the disk up to `left` bytes, in whole pages, even if others write to it meanwhile."""
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
                # Another process took some of the space between the two calls.
                if error.errno != errno.ENOSPC:
                    raise
            else:
                return


def free_again(disk: Path) -> None:
    (disk / FILLER).unlink(missing_ok=True)
