"""The random state of this process, as one value that can be kept and put back."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def capture() -> dict[str, Any]:
    """Python, numpy, torch and every CUDA device: plain values and tensors only."""
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        "numpy": (name, [int(key) for key in keys], position, has_gauss, cached),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def restore(state: dict[str, Any]) -> None:
    """Put `capture`'s value back. Raises KeyError, TypeError, ValueError or RuntimeError."""
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if len(state["cuda"]) != devices:
        raise ValueError(f"it was made with {len(state['cuda'])} GPUs, here are {devices}")
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if devices:
        torch.cuda.set_rng_state_all(state["cuda"])


@contextmanager
def preserved() -> Iterator[None]:
    """Whatever happens inside, the training outside draws the same numbers."""
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
    """Random numbers of one epoch's order."""
    # Mixed by SeedSequence, so that seed 42 in epoch 1 is not seed 43 in epoch 0.
    mixed = np.random.SeedSequence((seed, epoch)).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(mixed) >> 1)
