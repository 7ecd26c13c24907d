"""The devices this worker can compute on, found without torch.

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
    """The devices this worker registers: its visible GPUs (CUDA_VISIBLE_DEVICES), else the CPU.

    A GPU that no job can use, and a CPU where a GPU was expected, have the reason in `problem`.
    """
    found, problem = _find()
    if any(gpu["uuid"] for gpu in found):
        return found
    cpu = {"type": "cpu", "name": cpu_name(), "cores": cores()}
    return [*found, cpu | ({"problem": problem} if problem else {})]


def gpus() -> list[Device]:
    """The GPUs of `devices()` that a job can use.

    Each has `type` ("cuda"), `index` (its place in the list), `uuid`, `name`, `memory_bytes`,
    `compute_capability` (for example "8.0"), `driver_version`, and `mig`: whether it is one
    instance of a GPU in MIG mode. A value that NVML does not report is None.
    """
    found, problem = _find()
    for why in (problem, *(gpu.get("problem") for gpu in found)):
        if why:
            log.warning("gpu.unusable", problem=why)
    return [gpu for gpu in found if gpu["uuid"]]


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
    visible: list[Device]
    """The devices CUDA sees: the GPU itself, or its MIG instances."""


def _find() -> tuple[list[Device], str]:
    """The visible GPUs, and why there are fewer than expected (empty if there are not)."""
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
    """`index`: its number in NVML and nvidia-smi, in the order of the PCI bus."""
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    except pynvml.NVMLError as error:
        return _Gpu(None, [_unusable(None, driver, f"GPU {index} does not answer: {error}")])
    uuid = _read(pynvml.nvmlDeviceGetUUID, handle)
    mode = _read(pynvml.nvmlDeviceGetMigMode, handle)
    if mode is None or mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
        return _Gpu(uuid, [_device(handle, driver)])
    instances = [_device(instance, driver, handle) for instance in _instances(handle)]
    if instances:
        return _Gpu(uuid, instances)
    why = f"GPU {index} is in MIG mode and has no instance: create one, or turn MIG mode off"
    return _Gpu(uuid, [_unusable(handle, driver, why)])


def _device(handle: Any, driver: str | None, whole: Any | None = None) -> Device:
    """`whole`: the GPU that `handle` is a MIG instance of."""
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


def _instances(handle: Any) -> Iterator[Any]:
    for slot in range(_read(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        instance = _read(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, slot)
        if instance is not None:  # else the slot is empty, or no instance of ours
            yield instance


def _read(query: Callable[..., Any], *arguments: Any) -> Any:
    """One value; None if this device does not report it."""
    try:
        return query(*arguments)
    except pynvml.NVMLError:
        return None


def _visible(present: Sequence[_Gpu], wanted: str | None) -> tuple[list[Device], str]:
    """The devices in CUDA_VISIBLE_DEVICES. An index is in the order of PCI_BUS_ID."""
    if wanted is None:
        return [device for gpu in present for device in gpu.visible], ""
    chosen: list[Device] = []
    for name in map(str.strip, wanted.split(",")):
        named = _named(name, present)
        if not named:  # like CUDA: ignore everything after an unknown entry
            is_device = name.isdecimal() or name.startswith(("GPU-", "MIG-"))
            return chosen, f"CUDA_VISIBLE_DEVICES: there is no {name}" if is_device else ""
        if any(device is earlier for device in named for earlier in chosen):
            return [], f"CUDA_VISIBLE_DEVICES has {name} twice, so CUDA shows no GPU"
        chosen += named
    return chosen, ""


def _named(name: str, present: Sequence[_Gpu]) -> list[Device]:
    """By index, by UUID, or by a prefix of a UUID that no other device shares."""
    if name.isdecimal():
        return present[int(name)].visible if int(name) < len(present) else []
    if not name.startswith(("GPU-", "MIG-")):
        return []
    whole = [gpu.visible for gpu in present if (gpu.uuid or "").startswith(name)]
    instances = [
        [device]
        for gpu in present
        for device in gpu.visible
        if device["mig"] and (device["uuid"] or "").startswith(name)
    ]
    matches = whole + instances
    return matches[0] if len(matches) == 1 else []


if __name__ == "__main__":
    sys.stdout.write(json.dumps(devices()))
