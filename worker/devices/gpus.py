"""What this worker can compute on, found without torch.

`python -m worker.devices.gpus` prints it as JSON.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pynvml
import structlog

from worker.devices.cpus import cores, cpu_name

log = structlog.get_logger(__name__)

Device = dict[str, Any]

NO_GPU: Final = (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded)


def devices() -> list[Device]:
    """What this worker registers: the GPUs that CUDA_VISIBLE_DEVICES leaves, else the CPU.

    A GPU that no job can have, and a CPU where there should be a GPU, say why in `problem`.
    """
    found, problem = _find()
    if any(gpu["uuid"] for gpu in found):
        return found
    cpu = {"type": "cpu", "name": cpu_name(), "cores": cores()}
    return [*found, cpu | ({"problem": problem} if problem else {})]


def gpus() -> list[Device]:
    """Those of `devices()` that a job can have.

    Each has `type` ("cuda"), `index` (its place in the list), `uuid`, `name`, `memory_bytes`,
    `compute_capability` (for example "8.0"), `driver_version`, and `mig`: whether it is one
    instance of a GPU in MIG mode. What NVML does not report of a device is None.
    """
    found, problem = _find()
    for why in (problem, *(gpu.get("problem") for gpu in found)):
        if why:
            log.warning("gpu.unusable", problem=why)
    return [gpu for gpu in found if gpu["uuid"]]


def most_for_one_job(found: Sequence[Device]) -> int:
    """How many of these GPUs one job can have: a process sees one MIG instance at most, and next to
    it no other GPU, so that MIG instances are for jobs of one GPU."""
    whole = sum(not gpu["mig"] for gpu in found)
    return whole or min(len(found), 1)


@contextmanager
def nvml() -> Iterator[None]:
    """NVML, initialised for as long as the context lasts. Raises pynvml.NVMLError."""
    pynvml.nvmlInit()
    try:
        yield
    finally:
        pynvml.nvmlShutdown()


@dataclass(frozen=True)
class _Gpu:
    uuid: str | None
    parts: list[Device]
    """What CUDA sees of it: itself, or its MIG instances."""


def _find() -> tuple[list[Device], str]:
    """The visible GPUs, and why there are fewer than expected; empty: there are not."""
    try:
        with nvml():
            driver = _read(pynvml.nvmlSystemGetDriverVersion)
            present = [_gpu(index, driver) for index in range(pynvml.nvmlDeviceGetCount())]
    except NO_GPU:
        return [], ""
    except pynvml.NVMLError as error:
        return [], f"NVML does not work: {error}"
    found, problem = _visible(present, os.environ.get("CUDA_VISIBLE_DEVICES"))
    return [{**gpu, "index": index} for index, gpu in enumerate(found)], problem


def _gpu(index: int, driver: str | None) -> _Gpu:
    """By its number in NVML, which is its place on the PCI bus, as in nvidia-smi."""
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    except pynvml.NVMLError as error:
        return _Gpu(None, [_unusable(None, driver, f"GPU {index} does not answer: {error}")])
    uuid = _read(pynvml.nvmlDeviceGetUUID, handle)
    if not _is_in_mig_mode(handle):
        return _Gpu(uuid, [_device(handle, driver)])
    instances = [_device(instance, driver, handle) for instance in _instances(handle)]
    if instances:
        return _Gpu(uuid, instances)
    why = f"GPU {index} is in MIG mode and has no instance: make one, or switch the mode off"
    return _Gpu(uuid, [_unusable(handle, driver, why)])


def _device(handle: Any, driver: str | None, whole: Any | None = None) -> Device:
    """`whole`: the GPU of which `handle` is a MIG instance."""
    memory = _read(pynvml.nvmlDeviceGetMemoryInfo, handle)
    capability = _read(pynvml.nvmlDeviceGetCudaComputeCapability, whole or handle)
    device = {
        "type": "cuda",
        "uuid": _read(pynvml.nvmlDeviceGetUUID, handle),
        "name": _read(pynvml.nvmlDeviceGetName, handle) or "NVIDIA GPU",
        "memory_bytes": None if memory is None else int(memory.total),
        "compute_capability": capability and "{}.{}".format(*capability),
        "driver_version": driver,
        "mig": whole is not None,
    }
    if device["uuid"] is None:
        device["problem"] = f"NVML does not report the UUID of {device['name']}"
    return device


def _unusable(handle: Any | None, driver: str | None, problem: str) -> Device:
    device = {"type": "cuda", "name": "NVIDIA GPU", "driver_version": driver, "mig": False}
    known = device if handle is None else _device(handle, driver)
    return known | {"uuid": None, "problem": problem}


def _is_in_mig_mode(handle: Any) -> bool:
    mode = _read(pynvml.nvmlDeviceGetMigMode, handle)
    return mode is not None and mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE


def _instances(handle: Any) -> Iterator[Any]:
    for slot in range(_read(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        instance = _read(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, slot)
        if instance is not None:  # else the slot is empty, or no instance of ours
            yield instance


def _read(ask: Callable[..., Any], *arguments: Any) -> Any:
    """One value; None where this device does not report it, which says nothing of the others."""
    try:
        return ask(*arguments)
    except pynvml.NVMLError:
        return None


def _visible(present: Sequence[_Gpu], wanted: str | None) -> tuple[list[Device], str]:
    """What CUDA_VISIBLE_DEVICES leaves. An index counts as CUDA_DEVICE_ORDER=PCI_BUS_ID does."""
    if wanted is None:
        return [part for gpu in present for part in gpu.parts], ""
    chosen: list[Device] = []
    for name in map(str.strip, wanted.split(",")):
        named = _named(name, present)
        if not named:  # CUDA, too, ignores all that follows an entry that it does not know
            is_device = name.isdecimal() or name.startswith(("GPU-", "MIG-"))
            return chosen, f"CUDA_VISIBLE_DEVICES: there is no {name}" if is_device else ""
        if any(part is earlier for part in named for earlier in chosen):
            return [], f"CUDA_VISIBLE_DEVICES has {name} twice, so CUDA shows no GPU"
        chosen += named
    return chosen, ""


def _named(name: str, present: Sequence[_Gpu]) -> list[Device]:
    """By index, or by a UUID or as much of its beginning as no other device shares."""
    if name.isdecimal():
        return present[int(name)].parts if int(name) < len(present) else []
    if not name.startswith(("GPU-", "MIG-")):
        return []
    whole = [gpu.parts for gpu in present if (gpu.uuid or "").startswith(name)]
    instances = [
        [part]
        for gpu in present
        for part in gpu.parts
        if part["mig"] and (part["uuid"] or "").startswith(name)
    ]
    matches = whole + instances
    return matches[0] if len(matches) == 1 else []


if __name__ == "__main__":
    sys.stdout.write(json.dumps(devices()))
