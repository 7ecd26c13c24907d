"""The space on the disk under FINETUNE_HOME, and a reserve that lets removals work on a full one.

To remove a file SQLite has to write, and on a full disk it cannot. The reserve is a file that is
removed then, and made again once there is space.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeVar

import structlog
from sqlalchemy.exc import OperationalError

from service.settings import Settings

log = structlog.get_logger(__name__)

RESERVE: Final = ".reserve"
_KEPT_BYTES: Final = 256 * 1024**2
"""Uploads leave so much of the disk free, or a share of a small disk."""
_SHARE_OF_DISK: Final = 20
"""Of a small disk no more than a twentieth is kept free."""
_SHARE_OF_KEPT: Final = 8
Result = TypeVar("Result")


@dataclass(frozen=True)
class Space:
    """Bytes."""

    free: int
    total: int
    kept: int
    """What uploads leave free, for the jobs and for the database."""

    @property
    def is_short(self) -> bool:
        return self.free < self.kept

    def __str__(self) -> str:
        return (
            f"the disk has {_words(self.free)} of {_words(self.total)} free, and the last "
            f"{_words(self.kept)} are kept for jobs and the database: delete files or jobs"
        )


def space(settings: Settings) -> Space:
    folder = settings.home
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    state = os.statvfs(folder)
    total = state.f_blocks * state.f_frsize
    kept = min(_KEPT_BYTES, total // _SHARE_OF_DISK)
    return Space(state.f_bavail * state.f_frsize, total, kept)


def make_reserve(settings: Settings) -> None:
    """Make the reserve unless it exists or the disk has too little space for it."""
    path, now = settings.home / RESERVE, space(settings)
    size = now.kept // _SHARE_OF_KEPT
    if size == 0 or path.exists() or now.free < 2 * size:
        return
    partial = path.with_name(f"{RESERVE}.{os.getpid()}")
    try:
        with partial.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)
        partial.rename(path)
    except OSError as error:
        log.warning("disk.reserve_not_made", error=str(error))
        partial.unlink(missing_ok=True)


def with_reserve(settings: Settings, remove: Callable[[], Result]) -> Result:
    """What `remove` returns. If the disk is full it is called again with the reserve's space."""
    try:
        result = remove()
    except (OperationalError, OSError):
        if space(settings).free >= space(settings).kept // _SHARE_OF_KEPT:
            raise
        if not _release(settings):
            raise
        log.warning("disk.reserve_used")
        result = remove()
    with suppress(OSError):
        make_reserve(settings)
    return result


def _release(settings: Settings) -> bool:
    try:
        (settings.home / RESERVE).unlink()
    except FileNotFoundError:
        return False
    return True


def _words(size: int) -> str:
    return f"{size / 1024**2:,.0f} MiB"
