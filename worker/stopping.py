"""One byte that the worker's main process and its pool share: "we are shutting down"."""

import mmap


class SharedFlag:
    """Made before the pool forks; setting it is safe in a signal handler and after any death."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 1)

    def set(self) -> None:
        self._memory[0] = 1

    def is_set(self) -> bool:
        return self._memory[0] == 1
