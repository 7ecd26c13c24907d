"""Calls at the same time, and meanwhile."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager


def at_once(count: int, do: Callable[[], object]) -> list[Exception]:
    """What was raised, of so many calls at the same time."""
    return [each for each in all_at_once(*[do] * count) if isinstance(each, Exception)]


def all_at_once(*actions: Callable[[], object]) -> list[object]:
    """What each of them returned or raised."""
    barrier = threading.Barrier(len(actions))

    def run(action: Callable[[], object]) -> object:
        barrier.wait()
        try:
            return action()
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(actions)) as threads:
        return list(threads.map(run, actions))


@contextmanager
def again_and_again(
    do: Callable[[], object], after: threading.Event | None = None, every: float = 0.02
) -> Iterator[None]:
    """While the context lasts, but not before `after`, a thread calls `do`, with pauses of so many
    seconds."""
    stop = threading.Event()

    def work() -> None:
        if after is not None:
            after.wait(10)  # then the test fails, and need not hang
        while not stop.wait(every):
            do()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
