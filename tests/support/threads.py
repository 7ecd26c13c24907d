"""Calls at the same time, and meanwhile."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def at_once(count: int, do: Callable[[], object]) -> list[Exception]:
    """What was raised, of so many calls at the same time."""
    barrier = threading.Barrier(count)
    raised: list[Exception] = []

    def one() -> None:
        barrier.wait()
        try:
            do()
        except Exception as error:
            raised.append(error)

    threads = [threading.Thread(target=one) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


@contextmanager
def again_and_again(do: Callable[[], object], after: float = 0.0) -> Iterator[None]:
    """While the context lasts, but for the first seconds, a thread calls `do`."""
    stop = threading.Event()

    def work() -> None:
        stop.wait(after)
        while not stop.wait(0.02):
            do()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
