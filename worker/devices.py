"""What this worker can compute on, found without torch."""

import os
import platform
from pathlib import Path
from typing import Any

import pynvml
import structlog

log = structlog.get_logger(__name__)


def devices() -> list[dict[str, Any]]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, numbered as CUDA numbers them; else the CPU."""
    return gpus() or [{"type": "cpu", "name": _cpu_name(), "cores": _cpu_count()}]


def gpus() -> list[dict[str, Any]]:
    """[{"type": "cuda", "index", "uuid", "name", "memory_bytes"}]; empty without a driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        return [_describe(index, handle) for index, handle in enumerate(_visible_handles())]
    except pynvml.NVMLError:
        log.exception("the GPUs cannot be listed")
        return []
    finally:
        pynvml.nvmlShutdown()


def _describe(index: int, handle: Any) -> dict[str, Any]:
    name = pynvml.nvmlDeviceGetName(handle)
    memory = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    uuid = pynvml.nvmlDeviceGetUUID(handle)
    return {"type": "cuda", "index": index, "uuid": uuid, "name": name, "memory_bytes": memory}


def _visible_handles() -> list[Any]:
    present = [
        pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())
    ]
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return present
    handles = []
    for name in wanted.split(","):
        handle = _handle(name.strip(), present)
        if handle is None:
            break  # CUDA itself ignores all that follows an invalid entry
        handles.append(handle)
    return handles


def _handle(name: str, present: list[Any]) -> Any | None:
    if name.isdecimal():
        return present[int(name)] if int(name) < len(present) else None
    if not name.startswith(("GPU-", "MIG-")):
        return None
    try:
        return pynvml.nvmlDeviceGetHandleByUUID(name)
    except pynvml.NVMLError:
        return None


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _cpu_count() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
