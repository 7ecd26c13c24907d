"""Watches what a stage and all that it has started use, and ends them when it is too much."""

import re
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Final, Self

import structlog

from service.contract.failures import Failure
from worker.devices import memory
from worker.supervision.limits import breaches
from worker.supervision.limits.process_tree import ProcessTree
from worker.supervision.limits.stage_group import NO_GROUP, NoGroup, StageGroup
from worker.supervision.limits.stage_limits import GIB, StageLimits
from worker.supervision.limits.written_files import WrittenFiles

log = structlog.get_logger(__name__)

_LONGEST_PAUSE: Final = 0.5
_SHORTEST_PAUSE: Final = 0.02
_FASTEST: Final = 4 * GIB
"""Bytes in a second: no process fills memory or a disk faster than about so."""
_SCAN_SECONDS: Final = 30.0
_NEW_TASKS: Final = 32
_LESS_FREE: Final = 256 * 1024**2
_YIELD_SECONDS: Final = 0.4
_NAMED: Final = 3
_ODD: Final = re.compile(r"[^\w.:+-]+")


class ResourceWatch:
    """On a thread, as long as the context lasts; `pid` must not be reaped before its end.

    It looks more often the closer the stage is to a limit. Processes are looked for only when the
    machine has more tasks or less memory than before, and memory is counted exactly only when an
    upper bound exceeds the limit: most looks are a few small reads. Where the stage has a control
    group, the kernel counts its memory, and this only asks what it has done.

    `goes_first`: when the machine's memory runs out, this stage ends before any other.
    """

    def __init__(
        self,
        pid: int,
        limits: StageLimits,
        files: WrittenFiles,
        group: StageGroup | NoGroup = NO_GROUP,
        *,
        adopts: bool = True,
        goes_first: bool = False,
    ) -> None:
        self._tree = ProcessTree(pid, adopts=adopts)
        self._goes_first = goes_first
        self._limits = limits
        self._files = files
        self._group = group
        self._scanned_at = float("-inf")
        self._tasks, self._free = 0, 0
        self._unmapped = 0
        self._counted: tuple[int, int] | None = None
        """The upper bound when memory was last counted exactly, and the result."""
        self._short_since: float | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="limits", daemon=True)
        self.breach: Failure | None = None
        """Why the stage was ended, if it was."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.breach = self.breach or self._group.fault()
        self._group.kill()
        if sys.platform == "linux":
            self._tree.kill()  # also those that have left the stage's group of processes
            self._tree.reap_adopted()

    def _run(self) -> None:
        pause = 0.0
        if sys.platform != "linux":
            return
        while self.breach is None and not self._stop.wait(pause):
            try:
                self.breach, headroom = self._look()
            except OSError as error:
                log.warning("limits.unread", error=str(error))
                headroom = _FASTEST
            pause = max(_SHORTEST_PAUSE, min(_LONGEST_PAUSE, headroom / _FASTEST))
        if self.breach is not None:
            log.warning("stage.over_limit", code=self.breach.code, **self.breach.details)
            self._group.kill()
            while self._tree.kill() and not self._stop.wait(_SHORTEST_PAUSE):
                continue

    def _look(self) -> tuple[Failure | None, int]:
        """What is over its limit, and how many bytes are left until something could be."""
        limits, free = self._limits, memory.free_bytes()
        self._scan_if_changed(free)
        used = self._used_bytes() if self._group is NO_GROUP else 0
        fault = self._group.fault() or self._fault(used, free) or self._files.fault()
        memory_left = min(limits.memory_bytes - used, free - limits.memory_reserve_bytes)
        return fault, min(memory_left, self._files.headroom)

    def _scan_if_changed(self, free: int) -> None:
        tasks, now = _tasks_of_machine(), time.monotonic()
        is_due = now - self._scanned_at > _SCAN_SECONDS
        less_free = max(_LESS_FREE, self._limits.memory_bytes // 32)
        if is_due or tasks - self._tasks > _NEW_TASKS or self._free - free > less_free:
            self._tree.scan()
            self._unmapped = self._tree.unmapped_bytes()
            self._scanned_at, self._tasks, self._free = now, tasks, free
        self._tasks, self._free = min(self._tasks, tasks), max(self._free, free)

    def _used_bytes(self) -> int:
        """Exact, or an upper bound if that is below the limit."""
        bound = self._tree.resident_bytes() + self._unmapped
        if bound <= self._limits.memory_bytes:
            self._counted = None
            return bound
        if self._counted is None or bound - self._counted[0] > self._limits.memory_bytes // 50:
            exact = sum(self._tree.used_bytes().values()) + self._unmapped
            self._counted = bound, exact
        return self._counted[1]

    def _fault(self, used: int, free: int) -> Failure | None:
        limits = self._limits
        if self._tree.threads > limits.processes:
            return breaches.too_many_processes(self._tree.threads, limits.processes)
        if used > limits.memory_bytes:
            return breaches.too_much_memory(*self._largest(), limits.memory_bytes)
        if free < limits.memory_reserve_bytes and self._is_first_to_go():
            return breaches.machine_is_short(*self._largest(), limits.memory_bytes, free)
        if free >= limits.memory_reserve_bytes:
            self._short_since = None
        return None

    def _is_first_to_go(self) -> bool:
        """Whether to end this stage when the machine's memory runs out: of several that run here,
        each in its own worker process, the largest waits the shortest time."""
        if self._goes_first:
            return True
        used = sum(self._tree.used_bytes().values()) + self._tree.unmapped_bytes()
        if used < self._limits.memory_reserve_bytes:
            return False
        now = time.monotonic()
        self._short_since = self._short_since or now
        share = min(1.0, used / memory.total_bytes())
        return now - self._short_since >= _YIELD_SECONDS * (1 - share)

    def _largest(self) -> tuple[int, dict[str, int]]:
        """Bytes of all processes, and of those that have the most."""
        largest = Counter[str]()
        for process, count in self._tree.used_bytes().items():
            # A process chooses its own name.
            largest[_ODD.sub("?", process.name) or "?"] += count
        unmapped = self._tree.unmapped_bytes()
        if unmapped:
            largest["files in memory"] = unmapped
        return largest.total(), dict(largest.most_common(_NAMED))


def _tasks_of_machine() -> int:
    """Processes and threads, without looking at each."""
    return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])
