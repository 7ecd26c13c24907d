"""What the machine, or the container, gives: shared memory, disk, memory, open files."""

import os
import resource
import shutil
from pathlib import Path
from typing import Final

import psutil

from service.settings import Settings
from worker.devices.cpus import cores
from worker.doctor.check import Context, Finding, not_run, ok, warning

_GIB: Final = 1024**3
_SHM: Final = Path("/dev/shm")
# Docker's default is 64 MiB. NCCL asks for a few MiB for each pair of GPUs and channel, loader
# workers for each batch that waits.
_LEAST_SHM: Final = 1 * _GIB
_LEAST_DISK: Final = 20 * _GIB
_LEAST_MEMORY: Final = 4 * _GIB
_LEAST_FILES: Final = 4096
# Control groups, version 2 and version 1: what the container may have, in bytes, or `max`.
_MEMORY_LIMITS: Final = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def shared_memory(_: Context, folder: Path = _SHM) -> Finding:
    if not folder.is_dir():
        return not_run("not run", reason=f"there is no {folder} here")
    usage = shutil.disk_usage(folder)
    summary = f"{folder}: {usage.free / _GIB:.1f} GiB free of {usage.total / _GIB:.1f}"
    if usage.free < _LEAST_SHM:
        return warning(
            summary,
            reason="Several GPUs (NCCL) and loader workers pass data through it; with too little "
            "they fail with `No space left on device`, a bus error or an NCCL error.",
            remedy="Start the container with `--shm-size 8g` (compose: `shm_size: 8gb`), or with "
            "`--ipc=host`; outside of a container: `mount -o remount,size=8G /dev/shm`.",
            free_bytes=usage.free,
        )
    return ok(summary, free_bytes=usage.free)


def disk(_: Context) -> Finding:
    home = _existing(Settings().home)
    usage = shutil.disk_usage(home)
    summary = f"{usage.free / _GIB:.0f} GiB free of {usage.total / _GIB:.0f} under FINETUNE_HOME"
    if usage.free < _LEAST_DISK:
        return warning(
            summary,
            reason="A checkpoint of a full fine-tuning takes 12 to 16 bytes for each parameter: "
            "about 14 GiB for a model of a billion.",
            remedy="Make room, give FINETUNE_HOME a larger disk, or set "
            "FINETUNE_RETENTION_WORKSPACE_DAYS and `save_total_limit`.",
            free_bytes=usage.free,
        )
    return ok(summary, free_bytes=usage.free)


def memory(_: Context) -> Finding:
    total, available = psutil.virtual_memory().total, psutil.virtual_memory().available
    limit = container_limit()
    usable = min(total, limit) if limit else total
    of_container = f", the container may have {limit / _GIB:.1f}" if limit else ""
    summary = f"{available / _GIB:.1f} GiB available of {total / _GIB:.1f}{of_container}"
    data = {"total_bytes": total, "available_bytes": available, "container_bytes": limit}
    if min(usable, available) < _LEAST_MEMORY:
        return warning(
            summary,
            reason="Python, torch and the data take 1 to 2 GiB in each process, and a model is "
            "loaded into memory before it goes to the GPU. A stage without memory is killed.",
            remedy="Give the machine or the container more memory, or end other programs.",
            **data,
        )
    return ok(f"{summary}; {cores()} CPU(s)", **data)


def container_limit(files: tuple[Path, ...] = _MEMORY_LIMITS) -> int | None:
    """Bytes that the container's processes may have together; None without a limit."""
    for file in files:
        if file.is_file():
            text = file.read_text(encoding="ascii").strip()
            # Version 1 writes "no limit" as a number of the size of the address space.
            return int(text) if text.isdecimal() and int(text) < 1 << 60 else None
    return None


def open_files(_: Context) -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < _LEAST_FILES:
        return warning(
            f"a process may open {soft} files",
            reason="Loader workers and ranks hold a descriptor for each tensor that they share: "
            "they end with `Too many open files`.",
            remedy=f"Raise it before starting the worker: `ulimit -n 65536` (the hard limit is "
            f"{hard}), `LimitNOFILE=65536` in a systemd unit, `ulimits` in a compose file.",
            soft=soft,
            hard=hard,
        )
    return ok(f"a process may open {_shown(soft)} files", soft=soft, hard=hard)


def _shown(limit: int) -> str:
    return "any number of" if limit == resource.RLIM_INFINITY else str(limit)


def _existing(folder: Path) -> Path:
    """The nearest folder above that is there; the disk is the same."""
    while not os.path.lexists(folder):
        folder = folder.parent
    return folder
