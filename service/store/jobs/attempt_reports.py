"""What a running stage reports, written under its epoch: phase, progress, metrics, files."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from service.contract.stage.events import (
    ArtifactWritten,
    CheckpointSaved,
    Metric,
    Notice,
    PhaseChanged,
    Progress,
    ReferenceSaved,
    StageEvent,
)
from service.contract.states import Phase
from service.store.database import clock, insert_or, jsonable
from service.store.jobs import state
from service.store.jobs.claims import held
from service.store.scope import EVERYTHING
from service.store.tables.jobs import (
    ArtifactRow,
    AttemptRow,
    CheckpointRow,
    EventRow,
    JobRow,
    MetricRow,
)

# Their steps count examples and start at 0 again in every attempt: they do not show progress.
_REPEATED = frozenset({Phase.REFERENCE, Phase.BASELINE, Phase.EVALUATING, Phase.PREDICTING})


@dataclass
class Recorded:
    """What was written, and which folders can be removed."""

    at: datetime
    last_event: int = 0
    """Number of the last event of the batch; 0 when it had none for the history."""
    pruned: list[str] = field(default_factory=list)
    """Folders, relative to the workspace, of checkpoints that are no longer registered."""


def record(
    session: Session, job_id: str, epoch: int, events: Sequence[StageEvent]
) -> Recorded | None:
    """Write the events in order; None, and nothing written, when the epoch is stale.

    `Finished` and `Failed` end the attempt and are not for here (store/jobs/endings.py).
    """
    row = held(session, job_id, epoch)
    if row is None:
        return None
    writer = _Writer(session, row, clock(session))
    for event in events:
        writer.write(event)
    session.flush()
    return writer.recorded


def is_committed(session: Session, job_id: str, recorded: Recorded) -> bool:
    """Whether a batch whose COMMIT got no answer is in the database.

    Of a batch without events nothing is known, and it may be written twice: progress, metrics
    and checkpoints are the same after the second time. Waits for the row, as claims.is_committed.
    """
    state.lock(session, EVERYTHING, job_id)
    event = session.get(EventRow, (job_id, recorded.last_event))
    return event is not None and event.at == recorded.at


def resumed(
    session: Session, job_id: str, epoch: int, step: int, of_job: str | None = None
) -> bool:
    """Note from which checkpoint the attempt continues, the job's own unless `of_job` is given;
    False when the epoch is stale."""
    row = held(session, job_id, epoch)
    if row is None:
        return False
    session.get_one(AttemptRow, (job_id, epoch)).resumed_from_step = step
    origin = {} if of_job is None else {"job": of_job}
    state.append_event(session, row, "resumed", {"step": step} | origin, clock(session))
    session.flush()
    return True


def registered_checkpoints(session: Session, job_id: str) -> list[CheckpointRow]:
    """Those that have not been pruned, newest first."""
    query = (
        select(CheckpointRow)
        .where(CheckpointRow.job_id == job_id, CheckpointRow.pruned_at.is_(None))
        .order_by(CheckpointRow.step.desc())
    )
    return list(session.scalars(query))


def pruned_paths(session: Session, job_id: str) -> list[str]:
    """Folders of pruned checkpoints; a crash may have left some of them on disk."""
    query = select(CheckpointRow.path).where(
        CheckpointRow.job_id == job_id, CheckpointRow.pruned_at.is_not(None)
    )
    return list(session.scalars(query))


class _Writer:
    """Writes events for one locked row."""

    def __init__(self, session: Session, row: JobRow, now: datetime) -> None:
        self._session = session
        self._row = row
        self._now = now
        self.recorded = Recorded(at=now)

    def write(self, event: StageEvent) -> None:
        match event:
            case PhaseChanged():
                self._row.phase = event.phase
                self._append("phase", {"phase": event.phase})
            case Progress():
                self._row.progress = jsonable(event.model_dump(exclude={"type"}))
                if self._row.phase not in _REPEATED:
                    self._advance(event.step)
            case Metric():
                self._metric(event)
            case CheckpointSaved():
                self._checkpoint(event)
            case ReferenceSaved():
                if event.features > self._row.furthest_reference:
                    self._row.furthest_reference = event.features
                    self._row.crash_count = 0
            case Notice():
                self._append("notice", {"message": event.message, "data": event.data})
            case ArtifactWritten():
                known = event.model_dump(exclude={"type"})
                self._session.merge(ArtifactRow(job_id=self._row.id, created_at=self._now, **known))
                self._append("artifact", {"name": event.name, "bytes": event.bytes})
            case _:
                raise TypeError(f"{event.type} is for the supervisor and not recorded")
        self._row.updated_at = self._now

    def _append(self, kind: str, data: dict[str, Any]) -> None:
        state.append_event(self._session, self._row, kind, data, self._now)
        self.recorded.last_event = self._row.event_seq

    def _advance(self, step: int) -> None:
        if step > self._row.furthest_step:
            self._row.furthest_step = step
            self._row.crash_count = 0

    def _metric(self, event: Metric) -> None:
        values = {
            "job_id": self._row.id,
            "seq": self._row.metric_seq + 1,
            "kind": event.kind,
            "step": event.step,
            "progress_epoch": event.epoch,
            "at": self._now,
            "values": jsonable(event.values),
        }
        if event.is_remade:
            self._session.execute(
                delete(MetricRow).where(
                    MetricRow.job_id == self._row.id,
                    MetricRow.kind == event.kind,
                    MetricRow.step == event.step,
                )
            )
        new = insert_or(self._session, MetricRow).values(values)
        once = new.on_conflict_do_nothing(index_elements=["job_id", "kind", "step"])
        # Without the ORM, which would write the job's row before each number.
        inserted = self._session.connection().execute(once.returning(MetricRow.seq))
        if inserted.first() is not None:
            self._row.metric_seq += 1
        if event.kind != "system":
            last = {_flat_name(event.kind, name): value for name, value in event.values.items()}
            self._row.last_metrics = {**self._row.last_metrics, **jsonable(last)}

    def _checkpoint(self, event: CheckpointSaved) -> None:
        earlier = self._session.get(CheckpointRow, (self._row.id, event.step))
        if earlier is not None and earlier.path != event.path and earlier.pruned_at is None:
            # An earlier attempt got this far, but its checkpoint could not be read.
            self.recorded.pruned.append(earlier.path)
        if event.best:
            self._session.execute(
                update(CheckpointRow)
                .where(CheckpointRow.job_id == self._row.id, CheckpointRow.best)
                .values(best=False)
            )
        self._session.merge(
            CheckpointRow(
                job_id=self._row.id,
                epoch=self._row.epoch,
                created_at=self._now,
                pruned_at=None,
                **event.model_dump(exclude={"type"}),
            )
        )
        self._session.flush()
        self._append("checkpoint", event.model_dump(include={"step", "bytes", "metric", "best"}))
        self._advance(event.step)
        self._prune(newest=event.step)

    def _prune(self, newest: int) -> None:
        limit = (self._row.spec.get("training") or {}).get("save_total_limit")
        if limit is None:
            return
        kept = registered_checkpoints(self._session, self._row.id)
        oldest_first = sorted(kept, key=lambda row: row.step)
        for row in oldest_first:
            if len(kept) <= limit:
                return
            if row.best or row.step == newest:
                continue
            row.pruned_at = self._now
            kept.remove(row)
            self.recorded.pruned.append(row.path)
            self._append("checkpoint_pruned", {"step": row.step})


def _flat_name(kind: str, name: str) -> str:
    """`last_metrics` holds both the training and the evaluation loss."""
    return name if kind == "train" or name.startswith("eval_") else f"eval_{name}"
