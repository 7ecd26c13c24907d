"""One byte that the worker's main process and its pool share: how often it was told to stop."""

import mmap


class Shutdown:
    """Made before the pool forks; asking is safe in a signal handler and after any death."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 1)

    def request(self) -> None:
        """The first time running stages are let come to a good place, the second time not."""
        self._memory[0] = min(self._memory[0] + 1, 2)

    def is_requested(self) -> bool:
        return self._memory[0] > 0

    def is_urgent(self) -> bool:
        return self._memory[0] > 1
