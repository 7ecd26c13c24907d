"""Which kernel computes attention in half precision without dropout on this CPU, by measurement.

Neither is the faster one everywhere: without gradients, torch's fused kernel took a third to two
thirds of the time of plain products on an Intel, and 1.2 to 1.4 times as long on a Zen 4. With
gradients it depends on the processor and on how long the sequences are.

Not in float32, where plain products are faster here and there, too, but keep all weights of the
attention for the backward pass, which the fused kernel does not.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import torch

from service.contract.spec.spec import JobSpec
from worker.training import cpu_trials
from worker.training.fast_paths import FastPaths
from worker.training.kernels import cpu_attention
from worker.training.kernels.cpu_attention import Kernel, Kernels
from worker.training.objective import Features

PATH: Final = "cpu_attention"
"""Its name among the fast paths."""
UNMEASURED: Final = asdict(Kernels())
"""The choice where there is nothing to choose, and of trainings that an earlier release began."""
_SECONDS: Final = 0.4
_CLEARLY: Final = 0.9
"""A smaller difference may be noise, or come from tiles that are smaller than in the model because
fewer heads are measured."""
_ROUNDS: Final = (3, 15)
"""At least, whatever the time, and at most."""
_LEAST, _MOST = 64, 2048
"""Tokens of a sequence."""
_WEIGHTS: Final = 1 << 21
"""Of the attention, at most, unless one head has more."""
_SAMPLE: Final = 64
_USUAL: Final = (12, 64)
"""Heads and their width where the configuration does not tell."""


class Shape(NamedTuple):
    heads: int
    tokens: int
    width: int
    causal: bool


@dataclass(frozen=True)
class Seconds:
    """Of the same attention: forward and backward, and forward alone."""

    trained_fused: float
    trained_plain: float
    evaluated_fused: float
    evaluated_plain: float

    @property
    def kernels(self) -> Kernels:
        return Kernels(
            training=_faster(self.trained_fused, self.trained_plain),
            evaluation=_faster(self.evaluated_fused, self.evaluated_plain),
        )


def _faster(fused: float, plain: float) -> Kernel:
    return "fused" if fused < _CLEARLY * plain else "plain"


def choose(
    model: Any, spec: JobSpec, features: Features, paths: FastPaths, folder: Path, *, refers: bool
) -> None:
    """Set the kernels of `cpu_attention` for this process: those that a resumed training began
    with, or the faster ones. All processes must call this.

    `features`: some of the job's data; `folder`: where verdicts are kept; `refers`: whether the
    model is compared with values that it computed in evaluation mode before it was trained. These
    come from the kernel of the training then, so that they differ by the training alone.
    """

    def measure() -> dict[str, Any]:
        if not _matters(model, spec):
            return UNMEASURED
        shape = shape_of(model, features)
        found = cpu_trials.known_or_measured(
            folder, {"attention": shape._asdict()}, Seconds, lambda: measured(shape)
        )
        kernels = Kernels() if found is None else found.kernels
        return asdict(Kernels(kernels.training, kernels.training) if refers else kernels)

    cpu_attention.use(Kernels(**paths.choose(PATH, measure)))


def _matters(model: Any, spec: JobSpec) -> bool:
    halves = spec.training.bf16 or spec.training.bf16_full_eval or model.dtype != torch.float32
    return bool(halves and model.config._attn_implementation == cpu_attention.NAME)


def shape_of(model: Any, features: Features) -> Shape:
    """Of the model's attention over a typical example, with so few heads that it is quick."""
    heads, width = _heads(model.config.get_text_config())
    every = range(0, len(features), max(1, len(features) // _SAMPLE))
    lengths = [len(features[index]["input_ids"]) for index in every] or [_MOST]
    # Powers of two, so that jobs with similar data share the verdict.
    tokens = 1 << (int(median(lengths)) - 1).bit_length()
    tokens = min(max(tokens, _LEAST), _MOST)
    causal = any(getattr(part, "is_causal", False) for part in model.modules())
    return Shape(min(heads, max(1, _WEIGHTS // tokens**2)), tokens, width, causal)


def _heads(config: Any) -> tuple[int, int]:
    """Their number and width; some configurations have a list, with one for each layer."""
    names = ("num_attention_heads", "head_dim", "hidden_size")
    found = (getattr(config, name, None) for name in names)
    heads, width, size = (each if isinstance(each, int) else 0 for each in found)
    heads = heads or _USUAL[0]
    return heads, width or size // heads or _USUAL[1]


def measured(shape: Shape, clock: Callable[[], float] = time.thread_time) -> Seconds:
    """In about half a second, by this thread's own time."""
    trial, end = _Trial(shape, clock), clock() + _SECONDS
    rounds: list[tuple[float, ...]] = []
    with cpu_trials.one_thread():
        trial.seconds()  # what is prepared once
        while len(rounds) < _ROUNDS[0] or (len(rounds) < _ROUNDS[1] and clock() < end):
            rounds.append(trial.seconds())
    return Seconds(*map(min, zip(*rounds, strict=True)))


class _Trial:
    """The four in turn: what else the machine does in between makes no shortest time."""

    def __init__(self, shape: Shape, clock: Callable[[], float]) -> None:
        size = (1, shape.tokens, shape.heads, shape.width)  # as a model's layers give them
        values = torch.linspace(-2, 2, shape.width).expand(size)
        self._inputs = [
            (values + 1 / (1 + part)).bfloat16().transpose(1, 2).requires_grad_()
            for part in range(3)
        ]
        self._causal, self._clock = shape.causal, clock

    def seconds(self) -> tuple[float, ...]:
        kernels = (cpu_attention.fused, cpu_attention.plain)
        with torch.no_grad():
            evaluated = [self._time(kernel) for kernel in kernels]
        return *(self._time(kernel) for kernel in kernels), *evaluated

    def _time(self, kernel: Callable[..., torch.Tensor]) -> float:
        query, key, value = self._inputs
        began = self._clock()
        mixed = kernel(query, key, value, query.shape[-1] ** -0.5, causal=self._causal)
        if mixed.requires_grad:
            torch.autograd.grad(mixed, self._inputs, torch.ones_like(mixed))
        return self._clock() - began
