"""Which GPUs of this host are taken: an exclusive lock on a file for each.

A lock belongs to all processes that have inherited its descriptor: the supervisor and the stage
with its ranks. The kernel releases it when the last of them has ended, in whatever way, so that
nobody is given a GPU whose memory a training that was just killed still holds. An operator sees it
with `flock --exclusive --nonblock <home>/cache/devices/<UUID>.lock true`.
"""

import fcntl
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Self

from worker.devices.gpus import Device, most_for_one_job


class GpuLockError(Exception):
    """The folder cannot hold locks; the message says what to do."""


@dataclass(frozen=True)
class HeldGpus:
    """GPUs that nobody else is given; released when the context is left and no stage holds them."""

    gpus: tuple[str, ...] = ()
    descriptors: tuple[int, ...] = ()
    """One for each; a process that inherits them keeps the GPUs until it ends."""

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
        """How many one job can have."""

    def acquire(self, count: int) -> HeldGpus | None:
        """So many GPUs that are free, or none of them."""
        gpus: list[str] = []
        descriptors: list[int] = []
        # No process sees two MIG instances; for one GPU whole ones are the last choice.
        for gpu in self._instances + self._whole if count == 1 else self._whole:
            if len(gpus) == count:
                break
            descriptor = _lock(self._path(gpu))
            if descriptor is not None:
                gpus.append(gpu)
                descriptors.append(descriptor)
        taken = HeldGpus(tuple(gpus), tuple(descriptors))
        if len(gpus) == count:
            return taken
        taken.release()
        return None

    def scheduler_lock(self) -> "SchedulerLock":
        """The one in which all processes with these very GPUs are."""
        gpus = "\n".join(sorted(self._instances + self._whole))
        return SchedulerLock(self._path(f"line-{sha256(gpus.encode()).hexdigest()[:16]}"))

    def _path(self, name: str) -> Path:
        # Old drivers name an instance of a GPU that is cut in slices (MIG) with slashes.
        return self._folder / f"{name.replace('/', '_')}.lock"


class SchedulerLock:
    """Only who is first in it takes GPUs, so that whoever needs many is not overtaken while they
    become free one after the other. Left with the context, and at any death."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def try_acquire(self) -> bool:
        """Whether this process is first from now on."""
        self._descriptor = _lock(self._path)
        return self._descriptor is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)


def check(folder: Path) -> None:
    """GpuLockError where `folder` cannot lock files."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise GpuLockError(
            f"{folder} cannot lock files ({error.strerror}), and without locks two trainings could "
            "be given the same GPU: put FINETUNE_HOME on a file system with flock, such as a local "
            "disk or NFS 4, where this user may write"
        ) from error


def _lock(path: Path) -> int | None:
    """The descriptor that holds the exclusive lock; None where another one does."""
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
