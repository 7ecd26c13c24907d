"""Whether a model fits the machine's memory and disk, checked before a weight is loaded."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from service.contract.failures import FailureCode, StageError
from service.contract.spec.spec import JobSpec
from worker.devices import memory

_MIB: Final = 1024**2
_GIB: Final = 1024**3
_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}
_ADAM: Final = ("adamw_torch", "adamw_torch_fused")
"""Optimizers that keep two float32 numbers for each weight; of the others no lower bound is set."""
_EVER_FREE: Final = 0.8
"""Share of a machine's memory that may become free."""
_CONTAINER: Final = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True)
class Size:
    parameters: int
    buffers: int
    """Bytes of tables that are computed, not trained."""

    def weight_bytes(self, spec: JobSpec) -> int:
        return self.parameters * _bytes_each(spec) + self.buffers

    def training_bytes(self, spec: JobSpec) -> int:
        """The least that a training of all weights needs: weights, gradients, optimizer."""
        if not spec.trains or spec.peft is not None:
            return self.weight_bytes(spec)
        each = 2 * _bytes_each(spec)
        if spec.training.optim in _ADAM:
            each += 2 * _bytes_each(spec)
        return self.parameters * each + self.buffers


@dataclass(frozen=True)
class Room:
    """Bytes."""

    free: int
    total: int


def of_model(model: Any) -> Size:
    """Of a model without weights (on the meta device)."""
    parameters = sum(each.numel() for each in model.parameters())
    buffers = sum(each.numel() * each.element_size() for each in model.buffers())
    return Size(parameters, buffers)


def _bytes_each(spec: JobSpec) -> int:
    # `auto` is the type in the files: at least two bytes.
    return _BYTES.get(spec.model.dtype, 2)


def require_fits_host(size: Size, spec: JobSpec) -> None:
    """StageError(model_too_large) if the memory of a machine without a GPU is too small."""
    there = host_bytes()
    needed = size.training_bytes(spec)
    if needed > there:
        raise _too_large(size, f"{_needs(size, spec, needed)}, and this machine has", there, needed)


def require_free_memory(size: Size, spec: JobSpec) -> None:
    """StageError(insufficient_resources) if others have too much of the machine's memory now. What
    only fits with swap, or an idle machine, is tried all the same."""
    there, total = memory.free_bytes(), memory.total_bytes()
    needed = size.training_bytes(spec)
    if there < needed <= total * _EVER_FREE:
        what = f"{_needs(size, spec, needed)}, and this machine has free now"
        raise _lacking(size, what, Room(there, total), needed, "memory")


def require_fits_gpu(size: Size, spec: JobSpec, room: Room) -> None:
    """StageError(model_too_large) if a GPU cannot hold what the training needs,
    StageError(insufficient_resources) if it cannot now, because others have part of it."""
    needed = size.training_bytes(spec)
    if getattr(spec.peft, "quantization", None) is not None:
        return
    what = _needs(size, spec, needed)
    if needed > room.total:
        raise _too_large(size, f"{what}, and the GPU has", room.total, needed)
    if needed > room.free:
        what = f"{what}, and the GPU has free now"
        raise _lacking(size, what, room, needed, "gpu_memory")


def require_fits_disk(size: Size, spec: JobSpec, folder: Path) -> None:
    """StageError(model_too_large) if the whole disk cannot hold the finished model,
    StageError(disk_full) if it cannot now."""
    if not spec.trains or (spec.peft is not None and not spec.peft.merges):
        return
    usage, needed = shutil.disk_usage(folder), size.parameters * _bytes_each(spec)
    what = f"the finished model needs {_shown(needed)} on the disk, which has"
    if needed > usage.total:
        raise _too_large(size, what, usage.total, needed)
    if needed > usage.free:
        room = Room(usage.free, usage.total)
        raise _lacking(size, f"{what} free now", room, needed)


def _needs(size: Size, spec: JobSpec, needed: int) -> str:
    if not spec.trains or spec.peft is not None:
        return f"its weights need {_shown(needed)} of memory"
    weights = size.weight_bytes(spec)
    rest = "gradients and optimizer" if spec.training.optim in _ADAM else "gradients"
    return (
        f"its weights need {_shown(weights)} of memory and {rest} {_shown(needed - weights)} in "
        "addition"
    )


def _lacking(
    size: Size, what: str, room: Room, needed: int, resource: str | None = None
) -> StageError:
    """The job waits until there is enough. `resource`: None for the disk."""
    code = FailureCode.INSUFFICIENT_RESOURCES if resource else FailureCode.DISK_FULL
    details: dict[str, Any] = {"resource": resource} if resource else {}
    return StageError(
        code,
        f"The model has {size.parameters:,} parameters: {what} {_shown(room.free)}",
        bytes_needed=needed,
        bytes_there=room.free,
        bytes_total=room.total,
        **details,
    )


def _too_large(size: Size, what: str, there: int, needed: int) -> StageError:
    return StageError(
        FailureCode.MODEL_TOO_LARGE,
        f"The model has {size.parameters:,} parameters: {what} {_shown(there)}",
        parameters=size.parameters,
        bytes_needed=needed,
        bytes_there=there,
    )


def _shown(count: int) -> str:
    """In units so fine that sizes which differ are shown as different numbers."""
    return f"{count / _MIB:,.0f} MiB" if count < 100 * _GIB else f"{count / _GIB:,.1f} GiB"


def host_bytes(container: Path = _CONTAINER) -> int:
    """The machine's memory and swap, or its container's limit if that is less."""
    total = int(psutil.virtual_memory().total) + int(psutil.swap_memory().total)
    return min(total, memory.container_limit((container,)) or total)
