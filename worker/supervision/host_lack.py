"""What this host lacks for a job: disk, memory, open files, a device. None of it is the job's
fault, so the job waits (service/store/jobs/endings.py) until a check finds enough."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pynvml

from service.contract.failures import Failure, FailureCode
from service.settings import Settings
from worker import failures
from worker.devices import memory
from worker.devices.gpus import nvml
from worker.supervision.limits.sizes import size
from worker.supervision.limits.stage_limits import disk_reserve
from worker.supervision.limits.written_files import LEAST_WRITTEN

_FEWEST_INODES: Final = 64
_TOO_LARGE: Final = "A file was larger than FINETUNE_STAGE_FILE_BYTES allows"
_NO_START: Final = "The worker's machine could not start the stage"
_LACKING: Final = {
    errno.EMFILE: "open_files",
    errno.ENFILE: "open_files",
    errno.ENOMEM: "memory",
    errno.EAGAIN: "processes",
}


def is_lasting(lack: Failure, home: Path, gpus: Sequence[str] = ()) -> bool:
    """Whether a job that could not run for this reason cannot run here now either, with these GPUs.
    False where only another attempt can show it."""
    needed = lack.bytes_of("bytes_needed")
    if lack.code is FailureCode.DISK_FULL:
        return _free_on_disk(home) < needed or not _has_inodes(home)
    resource = lack.details.get("resource")
    if resource == "memory":
        return memory.free_bytes() < needed
    if resource == "gpu_memory":
        return any(_free_on_gpu(uuid) < needed for uuid in gpus)
    return False


def measured(failure: Failure, settings: Settings) -> Failure:
    """The failure of a full disk, completed by how much is free and needed. A file that is larger
    than the operator allows is another failure: a larger disk would not help."""
    if failure.code is not FailureCode.DISK_FULL:
        return failure
    if failure.details.get("file_limit") and (
        settings.stage_file_bytes or settings.stage_disk_bytes
    ):
        return Failure.from_code(FailureCode.DISK_LIMIT, f"{_TOO_LARGE}: {failure.message}")
    home = settings.home
    state = os.statvfs(home)
    total = state.f_blocks * state.f_frsize
    free = _free_on_disk(home)
    reserve = disk_reserve(total)
    details = {
        "bytes_needed": reserve + min(reserve, LEAST_WRITTEN),
        "bytes_there": free,
        "bytes_total": total,
    }
    left = f"{size(free)} of {size(total)} are free now"
    if not _has_inodes(home):
        left += ", but the disk can hold no more files (inodes)"
    message = f"{failure.message.rstrip('.')}; {left}"
    known = "bytes_needed" in failure.details
    return failure.model_copy(
        update={
            "message": failure.message if known and _has_inodes(home) else message,
            "details": details | failure.details,
        }
    )


def of_worker(error: Exception) -> Failure | None:
    """Of an error of the worker's own process; None if the machine does not lack anything that it
    can have later. A full disk has a code of its own."""
    resource = _LACKING.get(getattr(error, "errno", None) or 0)
    if resource is None:
        return None
    what = f"{_NO_START}: it lacks {resource.replace('_', ' ')} ({failures.describe(error)})"
    return Failure.from_code(FailureCode.INSUFFICIENT_RESOURCES, what, resource=resource)


def _free_on_disk(folder: Path) -> int:
    state = os.statvfs(folder)
    return state.f_bavail * state.f_frsize


def _has_inodes(folder: Path) -> bool:
    state = os.statvfs(folder)
    return state.f_files == 0 or state.f_favail >= _FEWEST_INODES  # some file systems have none


def _free_on_gpu(uuid: str) -> float:
    try:
        with nvml():
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            return int(pynvml.nvmlDeviceGetMemoryInfo(handle).free)
    except pynvml.NVMLError:  # the attempt will show it
        return float("inf")
