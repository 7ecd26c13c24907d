"""How much of the machine one stage may use: as set by the operator, or a share of all."""

import os
import resource
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from service.settings import Settings
from worker.devices import memory

GIB: Final = 1024**3
_MEMORY_SHARE: Final = 0.9
_SHARED_PART: Final = 4
_OPEN_FILES: Final = 65_536
_RESERVED_SHARE: Final = 0.05
_PROCESSES_FACTOR: Final = 4
"""The kernel counts all processes of a user, those of other stages included. So its limit lies so
many times higher, and only has to keep a bomb small until the supervisor ends it."""


@dataclass(frozen=True)
class StageLimits:
    memory_bytes: int
    processes: int
    disk_bytes: int
    file_bytes: int
    memory_reserve_bytes: int
    """Of the machine, for everything else that runs on it."""
    disk_reserve_bytes: int
    disk_is_limited: bool = True
    """By the operator; otherwise `disk_bytes` is what was free."""

    @classmethod
    def from_settings(cls, settings: Settings, folder: Path) -> Self:
        """`folder`: where the stage writes."""
        total, disk = memory.total_bytes(), shutil.disk_usage(folder)
        reserve = disk_reserve(disk.total)
        disk_bytes = settings.stage_disk_bytes or max(disk.free - reserve, reserve)
        return cls(
            memory_bytes=settings.stage_memory_bytes or default_memory(total),
            processes=settings.stage_processes,
            disk_bytes=disk_bytes,
            file_bytes=settings.stage_file_bytes or disk_bytes,
            memory_reserve_bytes=min(GIB, int(total * _RESERVED_SHARE)),
            disk_reserve_bytes=reserve,
            disk_is_limited=settings.stage_disk_bytes is not None,
        )

    def of_kernel(self) -> Mapping[int, int]:
        """Those that the kernel enforces (`worker.processes.kernel_limits`)."""
        return {
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_FSIZE: self.file_bytes,
            resource.RLIMIT_NOFILE: _OPEN_FILES,
            resource.RLIMIT_NPROC: _own_tasks() + _PROCESSES_FACTOR * self.processes,
        }


def disk_reserve(total: int) -> int:
    """Bytes of a disk of `total` that are kept for everything else."""
    return min(GIB, int(total * _RESERVED_SHARE))


def shared_memory(settings: Settings) -> int:
    """Of a stage's own /dev/shm. Files there that no process has open are in no process's memory,
    so they come on top of `memory_bytes`."""
    total = settings.stage_memory_bytes or default_memory(memory.total_bytes())
    return total // _SHARED_PART


def default_memory(total: int) -> int:
    """Nine tenths of the machine's memory, less a gibibyte; at least half of it."""
    return max(int(total * _MEMORY_SHARE) - GIB, total // 2)


def _own_tasks() -> int:
    """Processes and threads of this user."""
    count = 0
    for entry in os.scandir("/proc"):
        try:
            if entry.name.isdigit() and entry.stat().st_uid == os.getuid():
                count += sum(1 for _ in os.scandir(f"{entry.path}/task"))
        except OSError:  # it has just ended
            continue
    return count
