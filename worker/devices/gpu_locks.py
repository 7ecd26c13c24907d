"""Which GPUs of this host are in use: an exclusive file lock for each.

All processes that inherit a lock's descriptor hold it: the supervisor, the stage and its ranks. The
kernel releases it when the last of them has ended, however it ended, so no job gets a GPU whose
memory a killed training still occupies. To test a lock:
`flock --exclusive --nonblock <home>/cache/devices/<UUID>.lock true`.
"""

import fcntl
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Self

from service.contract.routing import most_for_one_job
from worker.devices.gpus import Device


class GpuLockError(Exception):
    """The folder does not support locks; the message explains what to do."""


@dataclass(frozen=True)
class HeldGpus:
    """GPUs reserved for one job, until the context ends and no stage holds them any more."""

    gpus: tuple[str, ...] = ()
    descriptors: tuple[int, ...] = ()
    """One for each GPU; a process that inherits them keeps the GPUs until it ends."""

    def release(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class GpuLocks:
    """`folder`: shared by all workers of this host and home; `gpus`: those of this worker
    (`worker.devices.gpus.gpus`)."""

    def __init__(self, folder: Path, gpus: Sequence[Device]) -> None:
        self._folder = folder
        self._whole = [gpu["uuid"] for gpu in gpus if not gpu["mig"]]
        self._instances = [gpu["uuid"] for gpu in gpus if gpu["mig"]]
        self.most = most_for_one_job(gpus)
        """The most GPUs one job can have."""

    def acquire(self, count: int) -> HeldGpus | None:
        """Reserve `count` free GPUs; None if there are fewer."""
        gpus: list[str] = []
        descriptors: list[int] = []
        # A process cannot use two MIG instances; one GPU is a whole one only as the last choice.
        for gpu in self._instances + self._whole if count == 1 else self._whole:
            if len(gpus) == count:
                break
            descriptor = try_lock(self._path(gpu))
            if descriptor is not None:
                gpus.append(gpu)
                descriptors.append(descriptor)
        held = HeldGpus(tuple(gpus), tuple(descriptors))
        if len(gpus) == count:
            return held
        held.release()
        return None

    def scheduler_lock(self) -> "SchedulerLock":
        """The lock shared by all processes that schedule exactly these GPUs."""
        gpus = "\n".join(sorted(self._instances + self._whole))
        return SchedulerLock(self._path(f"line-{sha256(gpus.encode()).hexdigest()[:16]}"))

    def _path(self, name: str) -> Path:
        # Old drivers name an instance of a GPU that is cut in slices (MIG) with slashes.
        return self._folder / f"{name.replace('/', '_')}.lock"


class SchedulerLock:
    """Only its holder reserves GPUs, so that a job that needs many is not overtaken while they
    become free one by one. Released when the context ends or the process dies."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def try_acquire(self) -> bool:
        """Whether this process holds the lock now."""
        self._descriptor = try_lock(self._path)
        return self._descriptor is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)


def check(folder: Path) -> None:
    """Raise GpuLockError if files in `folder` cannot be locked."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise GpuLockError(
            f"{folder} cannot lock files ({error.strerror}), and without locks two trainings could "
            "get the same GPU: put FINETUNE_HOME on a file system that supports flock, such as a "
            "local disk or NFS 4, in a folder this user may write to"
        ) from error


def try_lock(path: Path) -> int | None:
    """The descriptor that holds the exclusive lock; None if another process holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
