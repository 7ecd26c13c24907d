"""Compares torch's fused attention on a CPU with plain products, in float32 and bfloat16.

    python -m benchmarks.attention_kernels

Without dropout, on all cores, forward and backward as in a training, and forward alone as in an
evaluation. Both kernels run in turn; printed are the milliseconds of the fastest of some rounds.
`worker.training.kernels.cpu_attention_choice` chooses between them by a measurement of its own.
"""

import time
from collections.abc import Callable
from typing import Final, NamedTuple

import torch

from worker.training.kernels import cpu_attention


class Shape(NamedTuple):
    batch: int
    heads: int
    tokens: int
    width: int
    causal: bool = False

    def __str__(self) -> str:
        numbers = f"{self.batch} x {self.heads} x {self.tokens} x {self.width}"
        return f"{numbers}, causal" if self.causal else numbers


SHAPES: Final = (
    Shape(8, 12, 184, 32),
    Shape(8, 12, 512, 32),
    Shape(8, 6, 512, 64, causal=True),
    Shape(2, 9, 1024, 64, causal=True),
    Shape(1, 12, 2048, 64, causal=True),
)
_ROUNDS: Final = 12
_UNTIMED: Final = 3

Attention = Callable[[], torch.Tensor]


def both(inputs: list[torch.Tensor], shape: Shape) -> tuple[Attention, Attention]:
    """The fused kernel, and plain products."""
    query, key, value = inputs
    scale = shape.width**-0.5

    def fused() -> torch.Tensor:
        return cpu_attention.fused(query, key, value, scale, causal=shape.causal)

    def plain() -> torch.Tensor:
        return cpu_attention.plain(query, key, value, scale, causal=shape.causal)

    return fused, plain


def milliseconds(calls: tuple[Callable[[], object], ...]) -> list[float]:
    """The shortest of each."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(_UNTIMED + _ROUNDS):
        for call, own in zip(calls, times, strict=True):
            began = time.perf_counter()
            call()
            own.append((time.perf_counter() - began) * 1e3)
    return [min(own[_UNTIMED:]) for own in times]


def compare(shape: Shape, dtype: torch.dtype) -> None:
    size = (shape.batch, shape.tokens, shape.heads, shape.width)  # as a model's layers give them
    inputs = [
        torch.randn(size).to(dtype).transpose(1, 2).requires_grad_()
        for _ in ("query", "key", "value")
    ]
    gradient = torch.ones_like(inputs[0])
    fused, plain = both(inputs, shape)

    def training(attention: Attention) -> Callable[[], object]:
        return lambda: torch.autograd.grad(attention(), inputs, gradient)

    trained = milliseconds((training(fused), training(plain)))
    with torch.no_grad():
        evaluated = milliseconds((fused, plain))
        difference = float((fused() - plain()).abs().max())
    print(
        f"{shape!s:28} {str(dtype).removeprefix('torch.'):8}  "
        f"with gradients {trained[0]:6.1f} : {trained[1]:6.1f}   "
        f"without {evaluated[0]:6.1f} : {evaluated[1]:6.1f}   differ by {difference:.1e}",
        flush=True,
    )


def main() -> None:
    print("batch x heads x tokens x width; fused : plain, ms")
    for shape in SHAPES:
        for dtype in (torch.float32, torch.bfloat16):
            compare(shape, dtype)


if __name__ == "__main__":
    main()
