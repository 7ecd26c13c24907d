"""The files that a stage has written, and the space that is left on their disk."""

import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from service.contract.failures import Failure, FailureCode
from worker.supervision.limits.sizes import size
from worker.supervision.limits.stage_limits import StageLimits

_BLOCK: Final = 512
_MOST_FILES: Final = 1_000_000
_COUNT_SECONDS: Final = 30.0
LEAST_WRITTEN: Final = 64 * 1024**2
"""Bytes: a stage that has written less has not filled the disk."""
_DUTY: Final = 1000
"""Counting may take a thousandth of the time; a hundred times as much while the disk fills up."""


class WrittenFiles:
    """`folders`: where the stage may write. `fills_caches`: it writes elsewhere, too; that counts
    only towards the space that is left."""

    def __init__(
        self, folders: Sequence[Path], limits: StageLimits, *, fills_caches: bool = False
    ) -> None:
        self._fills_caches = fills_caches
        self._folders = folders
        self._limits = limits
        self._bytes = self._files = 0
        self._first_bytes: int | None = None
        self._first_free = self._free = self._free_at_count = _free(folders)
        self._counted_at = float("-inf")
        self._took = 0.0

    @property
    def headroom(self) -> int:
        """Bytes that can still be written before a limit is reached."""
        limits = self._limits
        less = max(0, self._free_at_count - self._free)
        return min(limits.disk_bytes - self._bytes - less, self._free - limits.disk_reserve_bytes)

    def fault(self) -> Failure | None:
        """Which limit is exceeded, if one is."""
        self._free = _free(self._folders)
        self._count_if_due()
        if self._bytes > self._limits.disk_bytes:
            if not self._limits.disk_is_limited:
                return self._full()
            return _too_large(self._bytes, self._limits.disk_bytes)
        if self._files > _MOST_FILES:
            message = f"The stage has made more than {_MOST_FILES} files"
            return Failure.from_code(FailureCode.DISK_LIMIT, message, limit=_MOST_FILES)
        if self._free < self._limits.disk_reserve_bytes and self._has_filled_it():
            return self._full()
        return None

    def _full(self) -> Failure:
        """Another time it would need more room than for what it has written. What it wrote into
        caches is there the next time."""
        reserve = self._limits.disk_reserve_bytes
        wrote = self._bytes - (self._first_bytes or 0)
        return Failure.from_code(
            FailureCode.DISK_FULL,
            f"The stage has filled the worker's disk: {size(self._free)} are left, and "
            f"{size(reserve)} are kept for everything else",
            free_bytes=self._free,
            bytes_needed=wrote + reserve + min(reserve, LEAST_WRITTEN),
            bytes_total=min(shutil.disk_usage(folder).total for folder in self._folders),
        )

    def _count_if_due(self) -> None:
        now = time.monotonic()
        passed, fills = now - self._counted_at, self._free_at_count - self._free > LEAST_WRITTEN
        pause = max(_COUNT_SECONDS, _DUTY * self._took)
        if passed < (_DUTY / 100 * self._took if fills else pause):
            return
        self._free_at_count, self._counted_at = self._free, now
        self._bytes, self._files = _count(self._folders)
        if self._first_bytes is None:
            self._first_bytes = self._bytes
        self._took = time.monotonic() - now

    def _has_filled_it(self) -> bool:
        """Whether ending this stage would help: others may have filled the disk."""
        least = min(self._limits.disk_reserve_bytes, LEAST_WRITTEN)
        if self._fills_caches:
            return self._first_free - self._free > least
        return self._bytes - (self._first_bytes or 0) > least


def _free(folders: Sequence[Path]) -> int:
    return min(shutil.disk_usage(folder).free for folder in folders)


def _count(folders: Sequence[Path]) -> tuple[int, int]:
    """Bytes on disk and number of all files; stops at the number that is too many."""
    total = files = 0
    waiting = [os.fspath(folder) for folder in folders]
    while waiting and files <= _MOST_FILES:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    status = entry.stat(follow_symlinks=False)
                    total += status.st_blocks * _BLOCK
                    files += 1
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except OSError:  # removed meanwhile, nested too deeply, or closed
            continue
    return total, files


def _too_large(used: int, most: int) -> Failure:
    return Failure.from_code(
        FailureCode.DISK_LIMIT,
        f"The stage has written {size(used)}; FINETUNE_STAGE_DISK_BYTES allows {size(most)}",
        limit_bytes=most,
        used_bytes=used,
    )
