"""A limit on the memory that a block of code may add, so that it fails instead of the machine."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_STATM: Final = "/proc/self/statm"
_DATA: Final = 5  # the field of `statm` that RLIMIT_DATA limits


@contextmanager
def added_memory(limit: int) -> Iterator[None]:
    """Allocations of more than `limit` bytes in addition to those that this process has fail: in
    Python with a MemoryError. Code that is written in Rust ends the process instead."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (_soft_limit(before, limit), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _soft_limit(given: tuple[int, int], limit: int) -> int:
    try:
        used = int(_statm().split()[_DATA]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):  # without /proc there is only the operator's limit
        return given[0]
    bounds = [used + limit, *(each for each in given if each != resource.RLIM_INFINITY)]
    return min(bounds)


def _statm() -> bytes:
    """Half as long as with Path.read_bytes, which counts where each row of a dataset is limited."""
    descriptor = os.open(_STATM, os.O_RDONLY)
    try:
        return os.read(descriptor, 256)
    finally:
        os.close(descriptor)
