"""Floating-point operations of a training, and the peak performance of its device."""

import re
from typing import Any, Final, NamedTuple

import torch


class Peak(NamedTuple):
    """Dense peaks in teraflops, accumulating in float32; from NVIDIA's data sheets, for the RTX
    cards from the white papers on their architectures."""

    half: float
    """For float16, and from compute capability 8.0 on also for bfloat16."""
    tf32: float
    single: float


_PEAKS: Final[dict[str, Peak]] = {
    "B200": Peak(2250.0, 1100.0, 75.0),
    "H200": Peak(989.4, 494.7, 66.9),
    "H200 NVL": Peak(835.5, 417.5, 60.0),
    "H100 HBM3": Peak(989.4, 494.7, 66.9),
    "H100 PCIE": Peak(756.0, 378.0, 51.2),
    "H100 NVL": Peak(835.0, 417.5, 60.0),
    "GH200": Peak(989.4, 494.7, 66.9),
    "A100": Peak(311.9, 155.9, 19.5),
    "A40": Peak(149.7, 74.8, 37.4),
    "A30": Peak(165.1, 82.5, 10.3),
    "A10": Peak(124.9, 62.5, 31.2),
    "A10G": Peak(70.0, 35.0, 35.0),
    "L40S": Peak(362.1, 183.2, 91.6),
    "L40": Peak(181.0, 90.5, 90.5),
    "L4": Peak(121.0, 60.0, 30.3),
    "RTX 6000 ADA GENERATION": Peak(364.2, 182.1, 91.1),
    "RTX A6000": Peak(154.8, 77.4, 38.7),
    "RTX 4090": Peak(165.2, 82.6, 82.6),
    "RTX 3090": Peak(71.0, 35.6, 35.6),
    "V100 SXM2": Peak(125.0, 15.7, 15.7),
    "V100 PCIE": Peak(112.0, 14.0, 14.0),
    "V100S PCIE": Peak(130.0, 16.4, 16.4),
    "T4": Peak(65.1, 8.1, 8.1),
}
"""By the model, as `_model` returns it."""

_BRANDS: Final = frozenset({"NVIDIA", "TESLA", "GEFORCE"})
_MEMORY: Final = re.compile(r"\d+GB?")
# The variants of these models differ only in their memory.
_SAME: Final = re.compile(r"(A100|GH200) (SXM4|PCIE|HBM3E)")


def flops_per_token(model: torch.nn.Module) -> float:
    """Trainer's estimate: six for each weight outside the embeddings, padding included.

    Covers the forward and the backward pass, without the attention scores.
    """
    known: Any = model
    weights: int = known.num_parameters(exclude_embeddings=True)
    return 6.0 * weights


def peak_flops(device: torch.device, mixed_precision: str) -> float | None:
    """Peak operations per second of the device; None if unknown."""
    if device.type != "cuda":
        return None
    # The new switch: torch raises if an old switch is read that differs from the new one.
    tf32 = torch.backends.cuda.matmul.fp32_precision == "tf32"
    return peak_of(torch.cuda.get_device_name(device), mixed_precision, tf32=tf32)


def peak_of(name: str, mixed_precision: str, *, tf32: bool) -> float | None:
    """`name` as torch and NVML report it; None for a GPU, or a slice of one, that is unknown."""
    peak = _PEAKS.get(_model(name))
    if peak is None:
        return None
    full = peak.tf32 if tf32 else peak.single
    return 1e12 * (peak.half if mixed_precision in {"bf16", "fp16"} else full)


def _model(name: str) -> str:
    """A device's name without its brand and memory size: "H100 HBM3" for "NVIDIA H100 80GB HBM3".
    All other words count: an "RTX A4000" is not an A40, and a slice of an A100 or a laptop's RTX
    4090 is another device."""
    words = [word for word in re.split(r"[\s-]+", name.upper()) if word not in _BRANDS]
    model = " ".join(word for word in words if not _MEMORY.fullmatch(word))
    same = _SAME.fullmatch(model)
    return same[1] if same else model
