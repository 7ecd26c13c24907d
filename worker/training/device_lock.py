"""Says which devices a training of ours is on, so that an operator or a test can see it."""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

import torch


def share(folder: Path, device: torch.device) -> Path:
    """Hold a shared lock on `folder/<device>.lock` for as long as this process and its forks live.

    Whoever gets the exclusive lock knows that no training of this service is left on the device:
    `flock --exclusive --nonblock <home>/cache/devices/cpu.lock true`. GPUs go by UUID, because
    their numbers depend on CUDA_VISIBLE_DEVICES. It keeps no second training off the device: how
    many a GPU takes is the operator's choice.
    """
    path = folder / f"{_name(device)}.lock"
    with suppress(OSError):  # a file system without locks is no reason not to train
        folder.mkdir(parents=True, exist_ok=True)
        # Never closed: the kernel does that, whatever way the process ends.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    return path


def _name(device: torch.device) -> str:
    if device.type != "cuda":
        return device.type
    return f"gpu-{torch.cuda.get_device_properties(device).uuid}"
