"""NVML of a machine with NVIDIA GPUs, where the test's own has none: `pynvml` on plain objects.

    nvml = Nvml([Gpu("GPU-a"), Gpu("GPU-b", name="Tesla T4", capability=(7, 5))])
    nvml.install(monkeypatch)

A handle is the Gpu itself. Each function raises what NVML raises: before `nvmlInit`, for a number
or a UUID that no device has, for what a MIG instance or a GPU without MIG does not support; and the
error codes that a test puts into `errors`.
"""

from collections.abc import Callable
from ctypes import c_uint
from dataclasses import dataclass, field
from typing import Any, Self

import pynvml
import pytest

GIB = 1024**3
NOT_SUPPORTED: int = pynvml.NVML_ERROR_NOT_SUPPORTED
NO_PERMISSION: int = pynvml.NVML_ERROR_NO_PERMISSION


@dataclass(eq=False)
class Gpu:
    """A GPU, or one of the MIG instances that it is cut into.

    `errors`: name of a function of pynvml → the error code that it raises for this device.
    `slices`: None on a GPU without MIG; [] where MIG is off; set by `cut`, where None is the slot
    of an instance that was destroyed.
    """

    uuid: str
    name: str = "NVIDIA A100-SXM4-80GB"
    memory_bytes: int = 80 * GIB
    used_bytes: int = 0
    capability: tuple[int, int] = (8, 0)
    pci_bus_id: str = "00000000:01:00.0"
    utilization: int = 0
    slices: list["Gpu | None"] | None = None
    mig: bool = False
    errors: dict[str, int] = field(default_factory=dict)
    parent: "Gpu | None" = field(default=None, init=False)

    def cut(self, *slices: "Gpu | None") -> Self:
        """In MIG mode, with these instances."""
        self.slices, self.mig = list(slices), True
        for slice_ in slices:
            if slice_ is not None:
                slice_.parent = self
        return self


class Nvml:
    """`init_error`: what `nvmlInit` raises; `errors`: function → code, on whatever device.

    `users`: how many `nvmlInit` have not been followed by `nvmlShutdown`."""

    def __init__(
        self,
        gpus: list[Gpu] | None = None,
        *,
        driver: str = "580.82.07",
        cuda: int = 13000,
        init_error: int | None = None,
        errors: dict[str, int] | None = None,
    ) -> None:
        self.gpus = gpus or []
        self.driver = driver
        self.cuda = cuda
        self.init_error = init_error
        self.errors = errors or {}
        self.users = 0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> Self:
        """In the place of pynvml's functions until the test ends."""
        for name in dir(self):
            if name.startswith("nvml"):
                monkeypatch.setattr(pynvml, name, self._checked(name))
        return self

    def _checked(self, name: str) -> Callable[..., Any]:
        function = getattr(self, name)

        def call(*arguments: Any) -> Any:
            if self.users == 0 and name != "nvmlInit":
                raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
            device = arguments[0] if arguments and isinstance(arguments[0], Gpu) else None
            _raise(self.errors.get(name))
            _raise(device.errors.get(name) if device is not None else None)
            return function(*arguments)

        return call

    def nvmlInit(self) -> None:
        _raise(self.init_error)
        self.users += 1

    def nvmlShutdown(self) -> None:
        self.users -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return self.driver

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return self.cuda

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:
        if not 0 <= index < len(self.gpus):
            _raise(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        _raise(self.gpus[index].errors.get("nvmlDeviceGetHandleByIndex"))
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Gpu:
        """By the whole UUID, unlike CUDA_VISIBLE_DEVICES."""
        for gpu in self.gpus:
            for device in (gpu, *(gpu.slices or [])):
                if device is not None and device.uuid == uuid:
                    return device
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def nvmlDeviceGetUUID(self, handle: Gpu) -> str:
        return handle.uuid

    def nvmlDeviceGetName(self, handle: Gpu) -> str:
        return handle.name

    def nvmlDeviceGetMemoryInfo(self, handle: Gpu) -> Any:
        memory = pynvml.c_nvmlMemory_t()
        memory.total, memory.used = handle.memory_bytes, handle.used_bytes
        memory.free = handle.memory_bytes - handle.used_bytes
        return memory

    def nvmlDeviceGetCudaComputeCapability(self, handle: Gpu) -> tuple[int, int]:
        return handle.capability

    def nvmlDeviceGetPciInfo(self, handle: Gpu) -> Any:
        pci = pynvml.nvmlPciInfo_t()
        pci.busId = (handle.parent or handle).pci_bus_id.encode()
        return pci

    def nvmlDeviceGetUtilizationRates(self, handle: Gpu) -> Any:
        if handle.mig or handle.parent is not None:
            _raise(NOT_SUPPORTED)
        rates = pynvml.c_nvmlUtilization_t()
        rates.gpu = handle.utilization
        return rates

    def nvmlDeviceGetMigMode(self, handle: Gpu) -> list[int]:
        """The mode now, and from the next restart on."""
        if handle.slices is None:
            _raise(NOT_SUPPORTED)
        return [int(handle.mig), int(handle.mig)]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Gpu) -> int:
        return 7 if handle.slices is not None else 0

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: Gpu, index: int) -> Gpu:
        slices = device.slices or []
        found = slices[index] if index < len(slices) else None
        if found is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return found

    def nvmlDeviceIsMigDeviceHandle(self, device: Gpu) -> c_uint:
        """As pynvml returns it: its truth is in `value`, the object itself is always true."""
        return c_uint(device.parent is not None)

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, migDevice: Gpu) -> Gpu:
        if migDevice.parent is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return migDevice.parent


def _raise(code: int | None) -> None:
    if code is not None:
        raise pynvml.NVMLError(code)
