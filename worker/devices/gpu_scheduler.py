"""Which waiting job gets the GPUs that become free: the first in the fair order of the projects.

The processes of a host that share GPUs compete for one scheduler lock. Its holder reserves GPUs for
the first job and claims it; if too few GPUs are free it waits for them, and the others wait for the
lock. So a free GPU gets its next job at once, even when its previous process was killed.
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
from service.store.database import Database
from service.store.jobs import claims
from service.store.jobs.claims import Claim
from service.store.scheduling.fair_queue import Waiting, first_fitting
from worker.devices.gpu_locks import GpuLocks, HeldGpus
from worker.lifecycle.shutdown import Shutdown

log = structlog.get_logger(__name__)

CHECK_SECONDS: Final = 0.1


@dataclass(frozen=True)
class Assignment:
    """An attempt and its GPUs; release `held` when the attempt is over."""

    claim: Claim
    held: HeldGpus


@dataclass
class GpuScheduler:
    """`try_claim` claims a waiting job with the given GPUs; `enqueue` sends the message of a job
    that still waits; `poll_seconds` is how often the waiting jobs are read again."""

    database: Database
    locks: GpuLocks
    try_claim: Callable[[str, str, tuple[str, ...]], Claim | None]
    enqueue: Callable[[str], None]
    shutdown: Shutdown
    poll_seconds: float

    def next(self, woken_by: str, queues: Sequence[str]) -> Assignment | None:
        """Claim the next job; None when no job waits for these GPUs, or the worker is to stop.

        `woken_by`: the job whose message started this call. Before this process waits, or runs
        another job, it puts that message back, because another host may have free GPUs. A worker
        that also serves the CPU queue lets only the holder of the scheduler lock wait, so that CPU
        jobs lose at most one process; afterwards it enqueues a job whose message the others have
        dropped in the meantime.
        """
        serves_cpu = CPU_QUEUE in queues
        with self.locks.scheduler_lock() as scheduler_lock:
            if not scheduler_lock.try_acquire():
                if serves_cpu:
                    return None
                self.enqueue(woken_by)
                if not self._wait_until(scheduler_lock.try_acquire):
                    return None
            assignment = self._assign(woken_by, queues)
        # Only after the lock is released: from here on no other process relies on this one.
        try:
            if serves_cpu:
                for job in self._waiting(queues)[:1]:
                    self.enqueue(job.job_id)
            elif assignment is not None and assignment.claim.job_id != woken_by:
                self.enqueue(woken_by)
        except (
            SQLAlchemyError
        ) as error:  # the reconciler sends them later; the claimed job must not be lost
            log.warning("message.postponed", error=str(error.__cause__ or error))
        return assignment

    def _assign(self, woken_by: str, queues: Sequence[str]) -> Assignment | None:
        """Called by the lock's holder. Reads the waiting jobs before each claim.

        A more urgent one may have arrived while no GPU was free.
        """
        has_waited = False
        while not self.shutdown.is_requested():
            waiting = self._waiting(queues)
            if not waiting:
                return None
            found = self._take(waiting)
            if found is not None:
                assignment = self._claim(*found)
                if assignment is not None:
                    return assignment
                continue  # a worker elsewhere was faster
            if not has_waited:
                has_waited = True
                log.info("gpus.busy", waiting_job_id=waiting[0].job_id, gpus=waiting[0].gpus)
                self.enqueue(woken_by)
            self._wait_until(partial(self._fits, waiting), self.poll_seconds)
        return None

    def _waiting(self, queues: Sequence[str]) -> list[Waiting]:
        """The first job of each project in each queue that this worker's GPUs can ever serve."""
        ours = [queue for queue in queues if 0 < gpus_of(queue) <= self.locks.most]
        with self.database.read() as session:
            return claims.first_waiting(session, ours)

    def _take(self, waiting: Sequence[Waiting]) -> tuple[Waiting, HeldGpus] | None:
        """The first job that enough GPUs are free for, unless an earlier one holds it back."""
        return first_fitting(waiting, self.locks.acquire)

    def _fits(self, waiting: Sequence[Waiting]) -> bool:
        found = self._take(waiting)
        if found is None:
            return False
        found[1].release()
        return True

    def _claim(self, job: Waiting, taken: HeldGpus) -> Assignment | None:
        try:
            claim = self.try_claim(job.job_id, job.queue, taken.gpus)
        except BaseException:
            taken.release()
            raise
        if claim is None:
            taken.release()
            return None
        return Assignment(claim, taken)

    def _wait_until(self, holds: Callable[[], bool], seconds: float = math.inf) -> bool:
        """Wait until the condition holds; False after `seconds`, or when the worker is to stop."""
        deadline = time.monotonic() + seconds
        while not holds():
            if self.shutdown.is_requested() or time.monotonic() > deadline:
                return False
            time.sleep(CHECK_SECONDS)
        return True
