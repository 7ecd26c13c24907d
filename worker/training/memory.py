"""How much memory there is; and a full one in words: what it held, what makes that smaller."""

import ctypes
import resource
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psutil
import torch

from service.contract.failures import FailureCode, StageError
from worker import failures

# Linux, control groups v2, as a container sees its own.
_CONTAINER: Final = Path("/sys/fs/cgroup")

TRIM_STEPS: Final = 100
"""Between two calls of `trim`. Pages that are used again are faulted in again, a percent of the
time of so many steps."""


class BatchInHand:
    """The shape of the batch that is being worked on, for the message."""

    def __init__(self) -> None:
        self.examples = 0
        self.length = 0

    def see(self, batch: Mapping[str, torch.Tensor]) -> None:
        shape = next(iter(batch.values())).shape
        self.examples, self.length = shape[0], shape[1] if len(shape) > 1 else 1


@contextmanager
def out_of_memory_explained(batch: BatchInHand, size_option: str) -> Iterator[None]:
    """StageError(out_of_memory) in place of what torch and its libraries raise on a GPU and on a
    CPU."""
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
    """The most memory that this process has taken so far: of its GPU where it computes on one, else
    of the machine. Of a GPU with what torch keeps for later tensors, which no other can use."""
    if torch.cuda.is_initialized():
        return torch.cuda.max_memory_reserved()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def resident_bytes() -> int:
    """What this process holds of the machine's memory now."""
    return int(psutil.Process().memory_info().rss)


def free_bytes(container: Path = _CONTAINER) -> int:
    """What this process could still take: of the machine, or of its container if that has less."""
    free = int(psutil.virtual_memory().available)
    limit = container / "memory.max"
    if limit.is_file() and (most := limit.read_text().strip()) != "max":
        words = (container / "memory.stat").read_text().split()
        kinds = dict(zip(words[::2], map(int, words[1::2]), strict=True))
        # Pages of files are given back when memory is short, but for those of a tmpfs.
        cached = kinds["file"] - kinds["shmem"]
        used = int((container / "memory.current").read_text()) - cached
        free = min(free, int(most) - used)
    return free


def trim() -> None:
    """Let the C library's malloc give back the pages that lie free in the midst of its heap, too.

    Tensors of ever new sizes come to lie between what stays, so that the heap gets longer and
    longer, and without this each page that was ever used remains resident. Other allocators look
    after that themselves; and other systems, which have no such function.
    """
    function = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if function is not None:
        function(0)
