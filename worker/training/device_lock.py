"""A lock that shows operators and tests that a training of this service is on the CPU.

For trainings on GPUs the worker's own locks, in the same folder, show this
(worker/devices/gpu_locks.py).
"""

import fcntl
import os
from contextlib import suppress
from pathlib import Path


def share_cpu(folder: Path) -> Path:
    """Hold a shared lock on `folder/cpu.lock` for as long as this process and its forks live.

    If the exclusive lock is free, no training of this service is left on the CPU:
    `flock --exclusive --nonblock <home>/cache/devices/cpu.lock true`. The lock does not limit how
    many trainings share the CPU: that is the operator's choice.
    """
    path = folder / "cpu.lock"
    with suppress(OSError):  # without file locks the training runs all the same
        folder.mkdir(parents=True, exist_ok=True)
        # Never closed: the kernel does that, however the process ends.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    return path
