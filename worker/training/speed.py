"""What a training computed: floating-point operations, and how much of the device that is."""

from typing import Any, Final

import torch

# Dense tensor-core peaks in teraflops, from NVIDIA's data sheets; first match counts, so that a
# longer name stands before a shorter one that it contains. Columns: 16 bit, TF32, float32.
_PEAKS: Final[tuple[tuple[str, float, float, float], ...]] = (
    ("B200", 2250.0, 1100.0, 75.0),
    ("H200", 989.4, 494.7, 66.9),
    ("H100 PCIe", 756.0, 378.0, 51.2),
    ("H100 NVL", 835.0, 417.5, 60.0),
    ("H100", 989.4, 494.7, 66.9),
    ("GH200", 989.4, 494.7, 66.9),
    ("A100", 311.9, 155.9, 19.5),
    ("A40", 149.7, 74.8, 37.4),
    ("A30", 165.1, 82.5, 10.3),
    ("A10G", 70.0, 35.0, 35.0),
    ("A10", 124.9, 62.5, 31.2),
    ("L40S", 362.1, 183.2, 91.6),
    ("L40", 181.0, 90.5, 90.5),
    ("L4", 121.0, 60.0, 30.3),
    ("V100", 125.0, 15.7, 15.7),
    ("T4", 65.1, 8.1, 8.1),
)


def flops_per_token(model: torch.nn.Module) -> float:
    """As Trainer estimates them: six for each weight outside the embeddings, also for padding.

    Forward and backward together; attention's own part is left out.
    """
    known: Any = model
    weights: int = known.num_parameters(exclude_embeddings=True)
    return 6.0 * weights


def peak_flops(device: torch.device, mixed_precision: str) -> float | None:
    """Operations per second that the device can make at best; None where that is not known."""
    if device.type != "cuda":
        return None
    tf32 = torch.backends.cuda.matmul.allow_tf32
    return peak_of(torch.cuda.get_device_name(device), mixed_precision, tf32=tf32)


def peak_of(name: str, mixed_precision: str, *, tf32: bool) -> float | None:
    for part, half, tensor, single in _PEAKS:
        if part in name:
            full = tensor if tf32 else single
            return 1e12 * (half if mixed_precision in {"bf16", "fp16"} else full)
    return None
