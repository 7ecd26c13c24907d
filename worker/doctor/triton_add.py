"""A Triton kernel in its own file: Triton reads its source, and is not installed everywhere."""

import torch
import triton  # type: ignore[import-not-found,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,unused-ignore]

_BLOCK = 256


@triton.jit
def _add_kernel(left, right, total, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = places < count
    numbers = tl.load(left + places, mask=mask) + tl.load(right + places, mask=mask)
    tl.store(total + places, numbers, mask=mask)


def add(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """left + right for float32 tensors on the GPU."""
    total = torch.empty_like(left)
    grid = (triton.cdiv(left.numel(), _BLOCK),)
    _add_kernel[grid](left, right, total, left.numel(), BLOCK=_BLOCK)
    return total
