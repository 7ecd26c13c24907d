"""One byte that the worker's main process and its pool share: how often a stop was requested."""

import mmap


class Shutdown:
    """Created before the pool forks; `request` is safe in a signal handler."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 1)

    def request(self) -> None:
        """The first request lets running stages reach a checkpoint; the second does not wait."""
        self._memory[0] = min(self._memory[0] + 1, 2)

    def is_requested(self) -> bool:
        return self._memory[0] > 0

    def is_urgent(self) -> bool:
        return self._memory[0] > 1
