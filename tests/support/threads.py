"""Calls at the same time."""

import threading
from collections.abc import Callable


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
