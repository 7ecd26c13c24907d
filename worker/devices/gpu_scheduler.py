"""Which waiting job gets the GPUs that become free: the first in the queues' order.

All processes of a host that share GPUs stand in one line. The first of them takes GPUs for the
first job and claims it; where too few are free it waits for them, and those behind it wait for
their turn. So a free GPU has its next job at once, also when a process was killed that held it.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog
from sqlalchemy.exc import SQLAlchemyError

from service.contract.routing import CPU_QUEUE, gpus_of
from service.store import claims
from service.store.claims import Claim, Waiting
from service.store.database import Database
from worker.devices.gpu_locks import GpuSlots, Taken
from worker.lifecycle.shutdown import Shutdown

log = structlog.get_logger(__name__)

LOOK_SECONDS: Final = 0.1
FIRST_HOLD_SECONDS: Final = 600.0


@dataclass(frozen=True)
class Placed:
    """An attempt and its GPUs, which its `Taken` has to release when it is over."""

    claim: Claim
    taken: Taken


class GpuScheduler:
    """`try_claim`: claims a job that waits in a queue, with these GPUs; `ring`: sends the message
    of a job that still waits. `poll_seconds`: how often it looks which jobs wait."""

    def __init__(
        self,
        database: Database,
        slots: GpuSlots,
        *,
        try_claim: Callable[[str, str, tuple[str, ...]], Claim | None],
        ring: Callable[[str], None],
        shutdown: Shutdown,
        poll_seconds: float,
    ) -> None:
        self._database = database
        self._slots = slots
        self._try_claim = try_claim
        self._ring = ring
        self._shutdown = shutdown
        self._poll_seconds = poll_seconds

    def next(self, rung: str, queues: Sequence[str]) -> Placed | None:
        """A claimed job; None: no job waits for these GPUs any more, or the worker is to stop.

        `rung`: the job whose message woke this process. Before it waits, or runs another job, it
        gives that message back: a worker elsewhere may have GPUs. Where the worker serves the CPU's
        queue, too, only the first in the line waits, so that CPU jobs lose one process at most; it
        rings for those whose message the others have dropped meanwhile.
        """
        serves_cpu = CPU_QUEUE in queues
        with self._slots.line() as line:
            if not line.step_up():
                if serves_cpu:
                    return None
                self._ring(rung)
                if not self._until(line.step_up):
                    return None
            placed = self._place(rung, queues)
        # Not before the line is left: from here on no other process relies on this one.
        try:
            if serves_cpu:
                for job in self._waiting(queues)[:1]:
                    self._ring(job.job_id)
            elif placed is not None and placed.claim.job_id != rung:
                self._ring(rung)
        except SQLAlchemyError as error:  # no reason to lose the job that was claimed
            log.warning("the reconciler will send what waits", error=str(error.__cause__ or error))
        return placed

    def _place(self, rung: str, queues: Sequence[str]) -> Placed | None:
        """First in the line. Looks again at who waits before it claims: a better one may have come
        while no GPU was free."""
        has_waited = False
        while not self._shutdown.is_asked():
            waiting = self._waiting(queues)
            if not waiting:
                return None
            found = self._take(waiting)
            if found is not None:
                placed = self._claim(*found)
                if placed is not None:
                    return placed
                continue  # a worker elsewhere was faster
            if not has_waited:
                has_waited = True
                log.info("a job waits for GPUs", waits=waiting[0].job_id, gpus=waiting[0].gpus)
                self._ring(rung)
            self._until(partial(self._fits, waiting), self._poll_seconds)
        return None

    def _waiting(self, queues: Sequence[str]) -> list[Waiting]:
        """The first job of each queue, as far as this worker's GPUs can ever be enough for it."""
        ours = [queue for queue in queues if 0 < gpus_of(queue) <= self._slots.most]
        with self._database.read() as session:
            return claims.first_waiting(session, ours)

    def _take(self, waiting: Sequence[Waiting]) -> tuple[Waiting, Taken] | None:
        """The first job for which enough GPUs are free, unless one before it holds it back."""
        for job in waiting:
            taken = self._slots.take(job.gpus)
            if taken is not None:
                return job, taken
            if holds_back(job.waited_seconds):
                return None
        return None

    def _fits(self, waiting: Sequence[Waiting]) -> bool:
        found = self._take(waiting)
        if found is None:
            return False
        found[1].release()
        return True

    def _claim(self, job: Waiting, taken: Taken) -> Placed | None:
        try:
            claim = self._try_claim(job.job_id, job.queue, taken.gpus)
        except BaseException:
            taken.release()
            raise
        if claim is None:
            taken.release()
            return None
        return Placed(claim, taken)

    def _until(self, holds: Callable[[], bool], seconds: float = math.inf) -> bool:
        """Wait until it holds; False when the time is over, or the worker is to stop."""
        deadline = time.monotonic() + seconds
        while not holds():
            if self._shutdown.is_asked() or time.monotonic() > deadline:
                return False
            time.sleep(LOOK_SECONDS)
        return True


def holds_back(waited_seconds: float) -> bool:
    """Whether jobs behind one that finds too few GPUs free must leave the free ones to it.

    In turns that double: for its first ten minutes, not for the next twenty, for the next forty
    and so on. So no stream of small jobs, however long each is, keeps a large one out for ever, and
    no GPU idles for days because the large one lacks another.
    """
    return int(math.log2(1 + max(0.0, waited_seconds) / FIRST_HOLD_SECONDS)) % 2 == 0
