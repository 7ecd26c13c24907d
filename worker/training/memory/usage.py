"""Measuring memory, and explaining an out-of-memory error: its cause, and what to change."""

import ctypes
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import psutil
import torch

from service.contract.failures import FailureCode, StageError
from worker import failures

TRIM_STEPS: Final = 100
"""Steps between two calls of `trim`. Pages that are needed again cause page faults, which cost one
percent of the time of so many steps."""


@dataclass
class CurrentBatch:
    """The shape of the current batch, for the error message."""

    examples: int = 0
    length: int = 0

    def record(self, examples: int, length: int) -> None:
        """`length`: tokens of each, with padding."""
        self.examples, self.length = examples, length


@contextmanager
def out_of_memory_explained(batch: CurrentBatch, size_option: str) -> Iterator[None]:
    """Turn the out-of-memory errors of torch and its libraries, on GPU and CPU, into
    StageError(out_of_memory)."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not failures.is_out_of_memory(error):
            raise
        peak = peak_bytes()
        advice = f"lower `{size_option}`" if batch.examples > 1 else "shorten the sequences"
        raise StageError(
            FailureCode.OUT_OF_MEMORY,
            f"out of memory at a batch of {batch.examples} sequences of {batch.length} tokens "
            f"(peak {peak / 2**30:.1f} GiB): {advice}",
            peak_bytes=peak,
            batch_size=batch.examples,
            longest_sequence=batch.length,
            option=size_option,
        ) from error


def peak_bytes() -> int:
    """Peak memory of this process so far: of its GPU if it computes on one, else of the machine.
    On a GPU it includes what torch reserves for later tensors, which no other process can use."""
    if torch.cuda.is_initialized():
        return torch.cuda.max_memory_reserved()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def resident_bytes() -> int:
    """The machine's memory that this process uses now."""
    return int(psutil.Process().memory_info().rss)


def trim() -> None:
    """Make the C library's malloc release free pages in the middle of its heap, too.

    Tensors of ever new sizes fragment the heap, which grows, and without this call every page that
    was ever used stays resident. Other allocators do this themselves, and so do other systems,
    which do not have this function.
    """
    function = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if function is not None:
        function(0)
