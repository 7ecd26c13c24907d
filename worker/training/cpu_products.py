"""Whether this CPU computes a model's matrix products faster in bfloat16, by measurement.

The processor's flags do not decide it: with `avx512_bf16` a Zen 5 multiplies bfloat16 several times
as fast as float32, and an Intel without AMX takes up to twice as long.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from worker.training import cpu_trials

Shape = tuple[int, int]
"""Inputs and outputs of a layer."""
_LAYERS: Final = (nn.Linear, Conv1D)
USUAL: Final = ((768, 768), (768, 1024), (1024, 768))
"""Where a model's are not known; the wider layers of a BERT base, as far as they are measured."""
_LEAST, _MOST = 384, 1024
"""Of either number. Of smaller products the call itself takes most, and those of larger ones are
computed in blocks."""
_SHAPES: Final = 3
_ROWS: Final = (64, 256)
"""Of the first try, and at most."""
_SECONDS: Final = 0.5
_PROBES: Final = 3
_ROUNDS: Final = (5, 10)
"""That must fit in, and at most."""


@dataclass(frozen=True)
class Seconds:
    """Of the same products, forward and backward."""

    float32: float
    bfloat16: float

    def __str__(self) -> str:
        return (
            f"{self.float32 * 1e3:.3g} ms in float32 and {self.bfloat16 * 1e3:.3g} ms in bfloat16"
        )


def shapes(model: nn.Module) -> list[Shape]:
    """Of those layers in which the model multiplies most, the largest share first."""
    counted = Counter(_shape(each) for each in model.modules() if isinstance(each, _LAYERS))
    share = {shape: count * shape[0] * shape[1] for shape, count in counted.items()}
    return sorted(share, key=lambda shape: (-share[shape], shape))[:_SHAPES]


def _shape(layer: nn.Linear | Conv1D) -> Shape:
    if isinstance(layer, Conv1D):
        inputs, outputs = layer.weight.shape
        return int(inputs), int(outputs)
    return layer.in_features, layer.out_features


class Trial:
    """Of the products of layers with these shapes, made once somebody asks for its result."""

    def __init__(self, model_shapes: Sequence[Shape], folder: Path) -> None:
        """`folder`: where verdicts are kept."""
        self._shapes = list(dict.fromkeys(map(_bounded, model_shapes or USUAL)))
        self._folder = folder
        self.seconds: Seconds | None = None
        """None until somebody asks, and where the verdict cannot be kept."""

    def make(self) -> None:
        """Set `seconds`: as an earlier job has measured them on this machine, or measured now."""
        trial = {"shapes": self._shapes}
        self.seconds = self.seconds or cpu_trials.known_or_measured(
            self._folder, trial, Seconds, lambda: measured(self._shapes)
        )

    def bfloat16_is_faster(self) -> bool:
        """False if the verdict cannot be kept: each process of a training would go by figures of
        its own."""
        self.make()
        return self.seconds is not None and self.seconds.bfloat16 < self.seconds.float32


def _bounded(shape: Shape) -> Shape:
    inputs, outputs = (min(max(number, _LEAST), _MOST) for number in shape)
    return inputs, outputs


def measured(
    model_shapes: Sequence[Shape], clock: Callable[[], float] = time.thread_time
) -> Seconds:
    """In about half a second; where one shape takes longer, the others are left out.

    In one thread, and by its own time: so other processes that compute meanwhile change little.
    """
    end, total = clock() + _SECONDS, Seconds(0.0, 0.0)
    with cpu_trials.one_thread():
        for place, shape in enumerate(model_shapes):
            if place and clock() >= end:
                break
            left = (end - clock()) / (len(model_shapes) - place)
            each = _fastest(_Product(shape, clock), left)
            total = Seconds(total.float32 + each.float32, total.bfloat16 + each.bfloat16)
    return total


def _fastest(product: "_Product", seconds: float) -> Seconds:
    """Of as many rows as fit in; of the fewest, if not even these do."""
    few, many = _ROWS
    product.seconds(few)  # what is prepared once
    probe = _shortest(product, few, _PROBES)
    a_row = (probe.float32 + probe.bfloat16) / few
    rows = min(many, few * int(seconds / _ROUNDS[0] / a_row / few))
    if not rows:
        return probe
    return _shortest(product, rows, min(_ROUNDS[1], int(seconds / (rows * a_row))))


def _shortest(product: "_Product", rows: int, rounds: int) -> Seconds:
    """Both precisions in turn: what else the machine does in between makes no shortest time."""
    times = [product.seconds(rows) for _ in range(rounds)]
    return Seconds(min(each.float32 for each in times), min(each.bfloat16 for each in times))


class _Product:
    """A layer's three: of inputs and weights, and the gradients of both, with autocast's casts."""

    def __init__(self, shape: Shape, clock: Callable[[], float]) -> None:
        self._inputs, outputs = shape
        self._weight = torch.full((outputs, self._inputs), 0.5, requires_grad=True)
        self._clock = clock

    def seconds(self, rows: int) -> Seconds:
        return Seconds(self._seconds(rows, half=False), self._seconds(rows, half=True))

    def _seconds(self, rows: int, *, half: bool) -> float:
        given = torch.full((rows, self._inputs), 0.5, requires_grad=True)
        began = self._clock()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            result = nn.functional.linear(given, self._weight)
        torch.autograd.grad(result, (given, self._weight), torch.ones_like(result))
        return self._clock() - began
