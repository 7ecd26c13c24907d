"""Memory of a GPU in segments that grow, for batches whose lengths change.

torch keeps what it has freed in pieces of the sizes that were asked for. When each step has other
sizes, many pieces fit nothing, and a training runs out of memory while much of it lies idle. A
segment that grows takes any size.
"""

import logging
import os
import platform
from pathlib import Path
from typing import Final

import torch

log = logging.getLogger(__name__)

OPERATORS: Final = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""Variables for torch's allocator. Where one is set, nothing is changed."""
_SETTING: Final = "expandable_segments"
_TEGRA: Final = Path("/etc/nv_tegra_release")


def enable(device: torch.device) -> None:
    """Before anything is on the device, of which a first number is tried out: drivers that cannot
    do it, as those of some virtual GPUs, fail at once."""
    if device.type != "cuda" or any(os.environ.get(name) for name in OPERATORS):
        return
    reason = _known_to_fail()
    if reason is None:
        _set(on=True)
        reason = _fault(device)
    if reason is not None:
        _set(on=False)
        log.warning("The GPU's memory is not in segments that grow: %s", reason)


def enabled() -> bool:
    return f"{_SETTING}:true" in torch._C._accelerator_getAllocatorSettings().lower()


def _known_to_fail() -> str | None:
    """Where a failed attempt might do harm. In WSL 2 pages cannot be mapped
    (github.com/pytorch/pytorch/issues/192330), and Jetsons say that they are out of memory."""
    if "microsoft" in platform.release().lower():
        return "not in WSL"
    if "tegra" in platform.release().lower() or _TEGRA.exists():
        return "not on Tegra boards"
    return None


def _fault(device: torch.device) -> str | None:
    try:
        torch.ones(1, device=device).item()
    except RuntimeError as error:
        return str(error).partition("\n")[0]
    return None


def _set(*, on: bool) -> None:
    torch._C._accelerator_setAllocatorSettings(f"{_SETTING}:{on}")
