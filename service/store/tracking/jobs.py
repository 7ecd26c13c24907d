"""How much of a job MLflow has: the run's ids, a cursor into its metrics, and the end; and what
searches share of this."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, func, select, text, update
from sqlalchemy.orm import Session

from service.contract.states import Stage
from service.store.database import db_now
from service.store.tables.files import FileRow
from service.store.tables.jobs import ArtifactRow, AttemptRow, JobRow, MetricRow
from service.store.tables.projects import ProjectRow
from service.store.tables.searches import SearchRow, SearchTrialRow

Tracked = type[JobRow] | type[SearchRow]


@dataclass(frozen=True)
class TrackedJob:
    """A job's row as the shipping needs it, read at one moment."""

    id: str
    project: str
    """The name in MLflow of the project that owns it."""
    spec: dict[str, Any]
    state: str
    created_at: datetime
    ended_at: datetime | None
    trained_at: datetime | None
    """When `train` was done last: a promotion comes after the training."""
    failure: dict[str, Any] | None
    results: dict[str, Any]
    claimed: bool
    """A worker has run some part of it."""
    experiment_id: str | None
    run_id: str | None
    tracked_seq: int
    metric_seq: int
    final: bool
    seconds_since_end: float
    """By the database's clock; 0 while the job lives."""
    search_id: str | None = None
    trial: int | None = None
    parent_run_id: str | None = None
    """The search's run, once there is one."""
    varied: Mapping[str, Any] = field(default_factory=dict)
    """Path → value, of the fields that vary in a search."""


def load(session: Session, job_id: str) -> TrackedJob | None:
    trained_at = (
        select(func.max(AttemptRow.ended_at))
        .where(
            AttemptRow.job_id == job_id,
            AttemptRow.stage == Stage.TRAIN.value,
            AttemptRow.outcome == "finished",
        )
        .scalar_subquery()
    )
    row = session.execute(
        select(JobRow, db_now().label("now"), trained_at, ProjectRow.mlflow_name)
        .add_columns(SearchRow.mlflow_run_id, SearchTrialRow.values)
        .join(ProjectRow, ProjectRow.id == JobRow.project_id)
        .join(SearchRow, SearchRow.id == JobRow.search_id, isouter=True)
        .join(
            SearchTrialRow,
            and_(
                SearchTrialRow.search_id == JobRow.search_id, SearchTrialRow.number == JobRow.trial
            ),
            isouter=True,
        )
        .where(JobRow.id == job_id)
    ).one_or_none()
    if row is None:
        return None
    job, now, trained, project, parent, varied = row
    return TrackedJob(
        id=job.id,
        project=project,
        spec=job.spec,
        state=job.state,
        created_at=job.created_at,
        ended_at=job.ended_at,
        trained_at=trained,
        failure=job.failure,
        results=job.results,
        claimed=job.epoch > 0,
        experiment_id=job.mlflow_experiment_id,
        run_id=job.mlflow_run_id,
        tracked_seq=job.tracked_seq,
        metric_seq=job.metric_seq,
        final=job.tracking_final,
        seconds_since_end=(now - job.ended_at).total_seconds() if job.ended_at else 0.0,
        search_id=job.search_id,
        trial=job.trial,
        parent_run_id=parent,
        varied=varied or {},
    )


def adopt_run(
    session: Session, table: Tracked, row_id: str, experiment_id: str, run_id: str
) -> str | None:
    """Make this the row's run unless it has one; the id of the run that it has now.

    None when there is no such row any more.

    Two processes may have made a run each: the first to come here decides for both.
    """
    session.execute(
        update(table)
        .where(table.id == row_id, table.mlflow_run_id.is_(None))
        .values(mlflow_experiment_id=experiment_id, mlflow_run_id=run_id)
    )
    return session.scalars(
        select(func.coalesce(table.mlflow_run_id, run_id)).where(table.id == row_id)
    ).one_or_none()


def metrics_after(session: Session, job_id: str, seq: int, limit: int) -> list[MetricRow]:
    """Rows in the order they were recorded, the first one after `seq`."""
    return list(
        session.scalars(
            select(MetricRow)
            .where(MetricRow.job_id == job_id, MetricRow.seq > seq)
            .order_by(MetricRow.seq)
            .limit(limit)
        )
    )


def advance(session: Session, job_id: str, seq: int) -> None:
    """All metrics up to `seq` have arrived; the cursor never goes back."""
    session.execute(
        update(JobRow).where(JobRow.id == job_id, JobRow.tracked_seq < seq).values(tracked_seq=seq)
    )


def artifacts(session: Session, job_id: str) -> list[ArtifactRow]:
    return list(
        session.scalars(
            select(ArtifactRow).where(ArtifactRow.job_id == job_id).order_by(ArtifactRow.name)
        )
    )


def finish(session: Session, job_id: str, ended_at: datetime) -> bool:
    """Nothing is left to ship; False, and nothing written, if the job was retried since."""
    return finish_if(session, JobRow, job_id, JobRow.ended_at == ended_at)


def finish_if(
    session: Session, table: Tracked, row_id: str, *unchanged: ColumnElement[bool], **values: Any
) -> bool:
    """Nothing is left to ship; False, and nothing written, unless the row is `unchanged`."""
    done = session.scalar(
        update(table)
        .where(table.id == row_id, *unchanged)
        .values(tracking_final=True, tracking_retry_at=None, **values)
        .returning(table.id),
        execution_options={"synchronize_session": False},
    )
    return done is not None


def retry_in(session: Session, table: Tracked, row_id: str, seconds: float) -> None:
    """Have the reconciler wake a worker for this row again after `seconds`."""
    session.execute(
        update(table)
        .where(table.id == row_id, table.tracking_final.is_(False))
        .values(tracking_retry_at=db_now(seconds))
    )


def file_names(session: Session, file_ids: Sequence[str]) -> dict[str, str]:
    """Id → the name it was uploaded with, of those that are still there."""
    rows = session.execute(select(FileRow.id, FileRow.filename).where(FileRow.id.in_(file_ids)))
    return {row.id: row.filename for row in rows}


def untracked(session: Session, limit: int) -> list[str]:
    """Ended jobs whose MLflow run is not complete, and for which it is time to try again."""
    query = (
        select(JobRow.id)
        .where(
            # In the words of ix_jobs_untracked, or SQLite reads every ended job instead.
            text("tracking_final = false"),
            JobRow.ended_at.is_not(None),
            JobRow.tracking_retry_at <= db_now(),
        )
        .order_by(JobRow.tracking_retry_at)
        .limit(limit)
    )
    return list(session.scalars(query))


def postpone_tracking(session: Session, job_ids: list[str], seconds: float) -> None:
    session.execute(
        update(JobRow)
        .where(JobRow.id.in_(job_ids), JobRow.tracking_final.is_(False))
        .values(tracking_retry_at=db_now(seconds)),
        execution_options={"synchronize_session": False},
    )
