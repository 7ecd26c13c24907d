"""Checks a matrix product in each precision."""

from dataclasses import dataclass
from typing import Final

import torch
from pydantic import JsonValue

from worker.doctor.check import Context, Finding, failed, ok

SIZE: Final = 512
"""Rows and columns of the matrices, which hold normally distributed numbers."""


@dataclass(frozen=True)
class Kind:
    """`tolerance`: the largest ||product - exact|| / ||exact||, about three times the error from
    rounding random inputs to the bits of the type (bfloat16 has 8, float16 and TF32 11, float32
    24); the error of a broken product is hundreds of times larger."""

    name: str
    dtype: torch.dtype
    tolerance: float
    fp32_precision: str = "ieee"


FP32: Final = Kind("fp32", torch.float32, 1e-5)
BF16: Final = Kind("bf16", torch.bfloat16, 1e-2)
TF32: Final = Kind("tf32", torch.float32, 2e-3, fp32_precision="tf32")
FP16: Final = Kind("fp16", torch.float16, 2e-3)
ON_GPU: Final = (FP32, TF32, BF16, FP16)


def products(context: Context) -> Finding:
    """Multiply on each GPU, or on the CPU if there is none."""
    on_gpu = context.device == "cuda"
    places = [f"cuda:{gpu['index']}" for gpu in context.torch.devices] if on_gpu else ["cpu"]
    errors: dict[str, JsonValue] = {}
    wrong: list[str] = []
    for place in places:
        for kind in ON_GPU if on_gpu else (FP32, BF16):
            error = relative_error(kind, torch.device(place))
            errors[f"{place} {kind.name}"] = error
            if not error <= kind.tolerance:  # also if it is NaN
                wrong.append(f"{kind.name} on {place}: {error:.2g} (at most {kind.tolerance:g})")
    names = ", ".join(f"{name} {error:.1e}" for name, error in errors.items())
    if wrong:
        return failed(
            "a matrix product is wrong",
            reason="Relative error against float64: " + "; ".join(wrong),
            remedy="A GPU that computes wrong results is broken, too hot or overclocked: check for "
            "Xid errors in `dmesg` and ECC errors with `nvidia-smi -q -d ECC`. Do not train on it."
            if on_gpu
            else "Reinstall torch; if that does not help, send this report.",
            relative_errors=errors,
        )
    return ok(
        f"relative errors against float64: {names}",
        relative_errors=errors,
        capability=[gpu["capability"] for gpu in context.torch.devices],
    )


def relative_error(kind: Kind, device: torch.device) -> float:
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(SIZE, SIZE, dtype=torch.float64, generator=generator) for _ in "ab")
    if device.type == "cuda":
        torch.backends.cuda.matmul.fp32_precision = kind.fp32_precision
    product = left.to(device, kind.dtype) @ right.to(device, kind.dtype)
    exact = left @ right
    return float((product.cpu().double() - exact).norm() / exact.norm())
