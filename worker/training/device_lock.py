"""Says that a training of ours is on the CPU, so that an operator or a test can see it.

For a training on GPUs the worker's own locks say so, in the same folder
(worker/devices/gpu_locks.py).
"""

import fcntl
import os
from contextlib import suppress
from pathlib import Path


def share_cpu(folder: Path) -> Path:
    """Hold a shared lock on `folder/cpu.lock` for as long as this process and its forks live.

    Whoever gets the exclusive lock knows that no training of this service is left on the CPU:
    `flock --exclusive --nonblock <home>/cache/devices/cpu.lock true`. It keeps no second training
    off the CPU: how many it takes is the operator's choice.
    """
    path = folder / "cpu.lock"
    with suppress(OSError):  # a file system without locks is no reason not to train
        folder.mkdir(parents=True, exist_ok=True)
        # Never closed: the kernel does that, whatever way the process ends.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    return path
