"""The random state of this process, as one value that can be saved and restored."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def capture() -> dict[str, Any]:
    """The states of Python, numpy, torch and this process's GPU: plain values and tensors."""
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        "numpy": (name, [int(key) for key in keys], position, has_gauss, cached),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if _is_on_gpu() else None,
    }


def restore(state: dict[str, Any]) -> None:
    """Restore a value of `capture`. Raises KeyError, TypeError, ValueError or RuntimeError.

    A GPU's state is ignored on a CPU. On a GPU, the state of a training on a CPU has none: the
    GPU's generator then stays as it was seeded.
    """
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and _is_on_gpu():
        torch.cuda.set_rng_state(state["cuda"])


def _is_on_gpu() -> bool:
    """Whether this process computes on a GPU; asking must not start CUDA."""
    return bool(torch.cuda.is_initialized())


@contextmanager
def preserved() -> Iterator[None]:
    """Restore the random state afterwards, so that the training draws the same numbers."""
    state = capture()
    try:
        yield
    finally:
        restore(state)


def shuffled(examples: int, seed: int, epoch: int) -> Sequence[int]:
    """The order of examples in an epoch: a pure function of its arguments."""
    order: list[int] = torch.randperm(examples, generator=generator(seed, epoch)).tolist()
    return order


def generator(seed: int, epoch: int) -> torch.Generator:
    """The generator for one epoch's order."""
    # SeedSequence mixes them: otherwise seed 42 in epoch 1 would equal seed 43 in epoch 0.
    mixed = np.random.SeedSequence((seed, epoch)).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(mixed) >> 1)
