"""The job's row and its history: insert, and the one function that writes a state.

Types in the `events` table. Each that changed the state has `from` and `to` in its data:
`submitted`, `stage_started` {stage, worker, gpus}, `stage_finished` {stage, seconds},
`attempt_failed` {stage, failure, retry, wait_seconds, next_stage}, `lease_expired` {stage, failure,
retry}, `released` {stage}, of a job that waits for its host with {failure, wait_seconds}, and what
the user did (store/jobs/user_actions.py): `cancel_requested`, `cancelled`, `pause_requested`,
`paused`, `resume_requested`, `retried` {stage, failed_stage, missing}, `promote_requested` and
`publish_requested` {stage, follow_up, missing} (store/jobs/follow_ups.py). The others are what a
stage reported (store/jobs/attempt_reports.py): `phase`, `notice`, `checkpoint`,
`checkpoint_pruned`, `artifact`, `resumed` {step}; `workspace_pruned` {checkpoints}
(store/files/retention.py); and `derived` {job}, when another job begins with this one's model
(store/jobs/lineage.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Final

from sqlalchemy import ColumnElement, select, update
from sqlalchemy import insert as insert_into
from sqlalchemy.orm import Session

from service.contract.failures import Failure, FailureCode
from service.contract.routing import queue_for
from service.contract.spec.spec import SPEC_VERSION, JobSpec
from service.contract.stage.events import Notice
from service.contract.states import ENDED, STAGE_ORDER, TRANSITIONS, JobState, Stage
from service.store.database import clock, db_now, jsonable
from service.store.jobs import wake_ups
from service.store.projects import usage
from service.store.projects.audit import Entry as AuditEntry
from service.store.scope import Scope
from service.store.tables.base import Base, new_id
from service.store.tables.jobs import EventRow, JobLabelRow, JobRow
from service.store.tables.projects import DEFAULT_PROJECT
from service.store.webhooks import outbox

_INSERT_JOB: Final = insert_into(JobRow.__table__)  # type: ignore[arg-type]
_INSERT_EVENT: Final = insert_into(EventRow.__table__)  # type: ignore[arg-type]
_INSERT_LABEL: Final = insert_into(JobLabelRow.__table__)  # type: ignore[arg-type]


def new_job_id() -> str:
    return new_id("job")


# ---- the row ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class NewJob:
    """A job to be made."""

    job_id: str
    project_id: str
    spec: JobSpec
    cloned_from: str | None = None
    notices: Sequence[Notice] = ()
    """What its user should know about it from the beginning."""
    by: AuditEntry | None = None
    """Who makes it, for the audit log."""
    search_id: str | None = None
    trial: int | None = None
    """Its number in the search that makes it."""


def insert(
    session: Session, job_id: str, spec: JobSpec, project_id: str = DEFAULT_PROJECT
) -> JobRow:
    """A queued job, due at once; as `insert_all`."""
    return insert_all(session, [NewJob(job_id, project_id, spec)], now=clock(session))[0]


def insert_all(
    session: Session, new: Sequence[NewJob], *, now: datetime, due_in: float = 0.0
) -> list[JobRow]:
    """Queued jobs at their first stage, with labels and first events; not in the session.

    `now`: the database's time. After `due_in` seconds the reconciler sends the messages
    of those that still wait.
    """
    rows, events, submitted = [], [], []
    for one in new:
        row = _new(one, now)
        row.next_publish_at += timedelta(seconds=due_in)
        data = {"to": row.state, "stage": row.stage}
        origins = {"cloned_from": one.cloned_from, "base_job": one.spec.base_job}
        origin = {name: origin for name, origin in origins.items() if origin is not None}
        submitted.append((row, _next_event(row, "submitted", data | origin, now)))
        events.append(submitted[-1][1])
        events += [
            _next_event(row, "notice", {"message": each.message, "data": each.data}, now)
            for each in one.notices
        ]
        rows.append(row)
    labels = [
        {"key": key, "value": value, "job_id": one.job_id}
        for one in new
        for key, value in one.spec.metadata.items()
    ]
    # Without the ORM, whose unit of work takes longer than all three statements.
    connection = session.connection()
    connection.execute(_INSERT_JOB, [_columns(row) for row in rows])
    connection.execute(_INSERT_EVENT, [_columns(event) for event in events])
    if labels:
        connection.execute(_INSERT_LABEL, labels)
    outbox.add_all(session, submitted, now)
    return rows


def _columns(row: Base) -> dict[str, Any]:
    """What the row was given, by column; the others begin as the schema says."""
    given = vars(row)
    return {column: given[key] for key, column in _names(type(row)) if key in given}


@cache
def _names(table: type[Base]) -> tuple[tuple[str, str], ...]:
    """Column by attribute name."""
    return tuple((a.key, a.columns[0].name) for a in table.__mapper__.column_attrs)


def _new(new: NewJob, now: datetime) -> JobRow:
    spec, stage = new.spec, STAGE_ORDER[0]
    return JobRow(
        id=new.job_id,
        project_id=new.project_id,
        name=spec.name,
        task=spec.task.type,
        spec=spec.model_dump(mode="json"),
        spec_version=SPEC_VERSION,
        metadata_=dict(spec.metadata),
        created_at=now,
        updated_at=now,
        cloned_from=new.cloned_from,
        search_id=new.search_id,
        trial=new.trial,
        state=JobState.QUEUED,
        last_metrics={},
        results={},
        priority=spec.priority,
        max_retries=spec.max_retries,
        timeout_seconds=spec.timeout_seconds,
        event_seq=0,
        epoch=0,
        **waiting_for(stage, spec, now),
    )


def waiting_for(stage: Stage, spec: JobSpec, now: datetime) -> dict[str, Any]:
    """Columns of a job that waits for `stage` from now on, with nothing tried yet."""
    return {
        "stage": stage,
        "phase": None,
        "progress": None,
        "stage_attempt": 0,
        "crash_count": 0,
        "furthest_step": 0,
        "furthest_reference": 0,
        "queue": queue_for(stage, spec),
        # `gpus: null` takes what the worker has, and that may be none.
        "min_gpus": (spec.resources.gpus or 0) if stage is Stage.TRAIN else 0,
        "queued_at": now,
        "not_before": now,
        "next_publish_at": now,
    }


def lock(session: Session, scope: Scope, job_id: str, *where: ColumnElement[bool]) -> JobRow | None:
    """The job's row, ours until the transaction ends; None when it is not there or not so."""
    query = select(JobRow).where(JobRow.id == job_id, scope.filter(JobRow.project_id), *where)
    query = query.with_for_update()
    return session.scalars(query, execution_options={"populate_existing": True}).one_or_none()


def append_event(
    session: Session, row: JobRow, kind: str, data: dict[str, Any], at: datetime
) -> None:
    """The next row of the history, and what webhooks are to be sent of it. `row` must be locked:
    the numbers have no gaps."""
    event = _next_event(row, kind, data, at)
    session.add(event)
    outbox.add(session, row, event)
    wake_ups.note_event(session)


def _next_event(row: JobRow, kind: str, data: dict[str, Any], at: datetime) -> EventRow:
    row.event_seq += 1
    return EventRow(
        job_id=row.id,
        seq=row.event_seq,
        at=at,
        type=kind,
        epoch=row.epoch,
        data=jsonable(data),
    )


def move(
    session: Session,
    job_id: str,
    expected: JobState,
    to: JobState,
    event: str,
    *where: ColumnElement[bool],
    data: dict[str, Any] | None = None,
    **values: Any,
) -> JobRow | None:
    """Write a state and its event; no other function writes states.

    Guarded by the `expected` state and by `where` (a worker adds its epoch). `values` are other
    columns that change with it. None when the guard does not hold: nothing was written.
    """
    if to not in TRANSITIONS[expected]:
        raise ValueError(f"a job cannot go from {expected} to {to}")
    statement = (
        update(JobRow)
        .where(JobRow.id == job_id, JobRow.state == expected, *where)
        .values(state=to, updated_at=db_now(), **values)
        .returning(JobRow)
    )
    options = {"synchronize_session": False, "populate_existing": True}
    row = session.scalars(statement, execution_options=options).one_or_none()
    if row is None:
        return None
    event_data = {"from": expected, "to": to, "stage": row.stage, **(data or {})}
    append_event(session, row, event, event_data, row.updated_at)
    session.flush()
    if to in ENDED:
        usage.add_end(session, row.project_id, to, row.updated_at)
    return row


TRACKING_GRACE_SECONDS = 30.0
"""Time to complete the MLflow run of an ended job before the reconciler wakes a worker."""

CANCELLED = Failure.from_code(FailureCode.CANCELLED, "Cancelled on request.")
