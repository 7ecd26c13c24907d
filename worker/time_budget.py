"""Ends a computation that takes too long, in the main thread; Python's regular expressions too.

It counts the processor's time: on a busy machine nothing ends that would not end on an idle one.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Never


@contextmanager
def time_budget(seconds: float, error: Callable[[], BaseException]) -> Iterator[None]:
    """Raise `error()` inside the block after so many seconds of computing."""

    def ring(_signal: int, _frame: FrameType | None) -> Never:
        raise error()

    before = signal.signal(signal.SIGVTALRM, ring)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
