"""Limits of the machine or container: shared memory, disk, memory, open files."""

import os
import resource
import shutil
from pathlib import Path
from typing import Final

import psutil

from service.settings import Settings
from worker.devices.cpus import cores
from worker.devices.memory import container_limit
from worker.doctor.check import Context, Finding, not_run, ok, warning

_GIB: Final = 1024**3
_SHM: Final = Path("/dev/shm")
# Docker's default is 64 MiB. NCCL needs a few MiB for each pair of GPUs and channel, loader
# workers need some for each waiting batch.
_MIN_SHM: Final = 1 * _GIB
_MIN_DISK: Final = 20 * _GIB
_MIN_MEMORY: Final = 4 * _GIB
_MIN_FILES: Final = 4096


def shared_memory(_: Context) -> Finding:
    if not _SHM.is_dir():
        return not_run(reason=f"there is no {_SHM} here")
    usage = shutil.disk_usage(_SHM)
    summary = f"{_SHM}: {usage.free / _GIB:.1f} GiB free of {usage.total / _GIB:.1f}"
    if usage.free < _MIN_SHM:
        return warning(
            summary,
            reason="Several GPUs (NCCL) and loader workers pass data through it; if it is too "
            "small, they fail with `No space left on device`, a bus error or an NCCL error.",
            remedy="Start the container with `--shm-size 8g` (compose: `shm_size: 8gb`), or with "
            "`--ipc=host`; outside a container: `mount -o remount,size=8G /dev/shm`.",
            free_bytes=usage.free,
        )
    return ok(summary, free_bytes=usage.free)


def disk(_: Context) -> Finding:
    home = Settings().home
    while not os.path.lexists(home):  # the nearest existing ancestor is on the same disk
        home = home.parent
    usage = shutil.disk_usage(home)
    summary = f"{usage.free / _GIB:.0f} GiB free of {usage.total / _GIB:.0f} under FINETUNE_HOME"
    if usage.free < _MIN_DISK:
        return warning(
            summary,
            reason="A checkpoint of a full fine-tuning takes 12 to 16 bytes for each parameter: "
            "about 14 GiB for a model of a billion.",
            remedy="Free some space, move FINETUNE_HOME to a larger disk, or set "
            "FINETUNE_RETENTION_WORKSPACE_DAYS and `save_total_limit`.",
            free_bytes=usage.free,
        )
    return ok(summary, free_bytes=usage.free)


def memory(_: Context) -> Finding:
    total, available = psutil.virtual_memory().total, psutil.virtual_memory().available
    limit = container_limit()
    of_container = f", the container may use {limit / _GIB:.1f}" if limit else ""
    summary = f"{available / _GIB:.1f} GiB available of {total / _GIB:.1f}{of_container}"
    data = {"total_bytes": total, "available_bytes": available, "container_bytes": limit}
    if min(total, limit or total, available) < _MIN_MEMORY:
        return warning(
            summary,
            reason="Python, torch and the data take 1 to 2 GiB in each process, and a model is "
            "loaded into memory before it is moved to the GPU. A stage that runs out of memory is "
            "killed.",
            remedy="Give the machine or the container more memory, or stop other programs.",
            **data,
        )
    return ok(f"{summary}; {cores()} CPU(s)", **data)


def open_files(_: Context) -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < _MIN_FILES:
        return warning(
            f"a process may open {soft} files",
            reason="Loader workers and ranks hold a descriptor for each tensor that they share "
            "and fail with `Too many open files`.",
            remedy=f"Raise it before starting the worker: `ulimit -n 65536` (the hard limit is "
            f"{hard}), `LimitNOFILE=65536` in a systemd unit, `ulimits` in a compose file.",
            soft=soft,
            hard=hard,
        )
    shown = "any number of" if soft == resource.RLIM_INFINITY else soft
    return ok(f"a process may open {shown} files", soft=soft, hard=hard)
