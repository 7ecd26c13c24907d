"""Expandable segments of GPU memory, for batches whose lengths change.

torch keeps freed memory in blocks of the sizes that were requested. If every step needs other
sizes, many blocks cannot be used again, and a training runs out of memory although much of it is
free. An expandable segment serves any size.
"""

import logging
import os
import platform
from pathlib import Path
from typing import Final

import torch

log = logging.getLogger(__name__)

OPERATORS: Final = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""Environment variables for torch's allocator. If the operator has set one, it stays as it is."""
_SETTING: Final = "expandable_segments"
_TEGRA: Final = Path("/etc/nv_tegra_release")


def enable(device: torch.device) -> None:
    """Turn expandable segments on, before anything is on the device. A small allocation tests them:
    drivers without support, such as those of some virtual GPUs, fail at once."""
    if device.type != "cuda" or any(os.environ.get(name) for name in OPERATORS):
        return
    reason = _known_to_fail()
    if reason is None:
        _set(on=True)
        reason = _fault(device)
    if reason is not None:
        _set(on=False)
        log.warning("expandable_segments.unsupported reason=%s", reason)


def enabled() -> bool:
    return f"{_SETTING}:true" in torch._C._accelerator_getAllocatorSettings().lower()


def _known_to_fail() -> str | None:
    """Platforms where a failed attempt might do harm. In WSL 2 pages cannot be mapped
    (github.com/pytorch/pytorch/issues/192330), and Jetsons report that they are out of memory."""
    if "microsoft" in platform.release().lower():
        return "WSL"
    if "tegra" in platform.release().lower() or _TEGRA.exists():
        return "Tegra board"
    return None


def _fault(device: torch.device) -> str | None:
    try:
        torch.ones(1, device=device).item()
    except RuntimeError as error:
        return str(error).partition("\n")[0]
    return None


def _set(*, on: bool) -> None:
    torch._C._accelerator_setAllocatorSettings(f"{_SETTING}:{on}")
