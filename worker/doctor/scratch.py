"""The folder where checks write: one per run, removed at its end or by the next run."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_LOCK: Final = "lock"
_PREFIX: Final = "run-"


@contextmanager
def folder(home: Path) -> Iterator[Path]:
    """An empty folder under `home`, the disk that jobs use; if not writable, a temporary folder.

    Removes the folders of killed runs: nobody holds their locks.
    """
    root = home / "doctor"
    try:
        root.mkdir(parents=True, exist_ok=True)
        for left in root.glob(f"{_PREFIX}*"):
            if _is_free(left / _LOCK):
                shutil.rmtree(left, ignore_errors=True)
        own = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
    except OSError:
        own = Path(tempfile.mkdtemp(prefix="finetune-doctor-"))
    descriptor = os.open(own / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield own
    finally:
        os.close(descriptor)
        shutil.rmtree(own, ignore_errors=True)


def _is_free(lock: Path) -> bool:
    try:
        with lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # locked; or its run has only just created the folder
        return False
    return True
