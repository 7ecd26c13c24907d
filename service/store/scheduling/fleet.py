"""The live workers and how busy they are: which of them can take what waits, and which now."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from sqlalchemy import Connection, Select, literal, select, union_all

from service.contract.interactive.predictions import PredictionState
from service.contract.interactive.previews import PreviewState
from service.contract.routing import (
    CPU_QUEUE,
    PREDICT_QUEUE,
    gpus_of,
    most_for_one_job,
    usable_gpus,
)
from service.contract.states import HELD
from service.store.database import db_now
from service.store.tables.interactive import PredictionRow, PreviewRow
from service.store.tables.jobs import JobRow
from service.store.tables.workers import WorkerRow

# Without the ORM, which takes longer than the statement.
_HELD: Final = union_all(
    select(JobRow.worker_id, JobRow.queue).where(
        JobRow.state.in_(sorted(HELD)), JobRow.worker_id.is_not(None)
    ),
    select(PreviewRow.worker_id, literal(CPU_QUEUE)).where(
        PreviewRow.state == PreviewState.RUNNING, PreviewRow.worker_id.is_not(None)
    ),
    select(PredictionRow.worker_id, literal(PREDICT_QUEUE)).where(
        PredictionRow.state == PredictionState.RUNNING, PredictionRow.worker_id.is_not(None)
    ),
)
"""Worker and queue of each job, preview and prediction that a worker has: a preview takes a slot,
and no GPU, from whatever queue it was; so does a prediction, which leaves its GPU to jobs and has
a queue of its own here, by which it is known."""


@dataclass(frozen=True)
class LiveWorker:
    hostname: str
    queues: frozenset[str]
    slots: int
    """How many stages, previews and predictions it runs at once."""
    running: int
    """How many it runs now."""
    answers: bool
    """Whether a prediction is among them, so that the worker is soon free."""
    most_gpus: int
    """The most GPUs that one job can have here."""
    packages: frozenset[str] | None
    """Which of `worker_needs.PACKAGES` it has; None if that is unknown."""
    free_gpus: int

    def can_run(self, queue: str, min_gpus: int) -> bool:
        """Whether it could ever claim such a job: the conditions of `claims.claim`."""
        return queue in self.queues and min_gpus <= self.most_gpus

    def is_free(self, queue: str) -> bool:
        """Whether it could start what waits in this queue now. Without GPUs it needs only a
        slot."""
        needed = gpus_of(queue) if self.most_gpus else 0
        return self.running < self.slots and needed <= self.free_gpus


@dataclass(frozen=True)
class Fleet:
    workers: Sequence[LiveWorker]

    @classmethod
    def read(cls, connection: Connection, within_seconds: float) -> "Fleet":
        """Workers with a heartbeat within the last `within_seconds`, in two statements."""
        rows = connection.execute(_live(within_seconds)).all()
        if not rows:
            return cls(())
        held: dict[str, list[str]] = defaultdict(list)
        for worker_id, queue in connection.execute(_HELD):
            held[str(worker_id)].append(queue)
        gpus = {row.id: frozenset(gpu["uuid"] for gpu in usable_gpus(row.devices)) for row in rows}
        return cls([_live_worker(row, gpus, held) for row in rows])

    def can_run(self, queue: str, min_gpus: int) -> list[LiveWorker]:
        return [worker for worker in self.workers if worker.can_run(queue, min_gpus)]

    @property
    def most_gpus(self) -> int:
        """The most GPUs that one job can have on any worker."""
        return max((worker.most_gpus for worker in self.workers), default=0)


@cache
def _live(within_seconds: float) -> Select[Any]:
    columns = (
        *(WorkerRow.id, WorkerRow.hostname, WorkerRow.queues),
        *(WorkerRow.devices, WorkerRow.slots, WorkerRow.packages),
    )
    return select(*columns).where(WorkerRow.last_seen_at > db_now(-within_seconds))


def _live_worker(
    row: Any, gpus: dict[str, frozenset[str]], held: dict[str, list[str]]
) -> LiveWorker:
    # Workers of one host may share GPUs; a job on any of them takes its GPUs from all.
    sharing = [other for other, theirs in gpus.items() if theirs & gpus[row.id]]
    taken = sum(gpus_of(queue) for other in sharing for queue in held.get(other, ()))
    return LiveWorker(
        hostname=row.hostname,
        queues=frozenset(row.queues),
        slots=row.slots,
        running=len(held.get(row.id, ())),
        answers=PREDICT_QUEUE in held.get(row.id, ()),
        most_gpus=most_for_one_job(row.devices),
        packages=None if row.packages is None else frozenset(row.packages),
        free_gpus=max(0, len(gpus[row.id]) - taken),
    )
