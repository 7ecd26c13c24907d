"""What retention may remove: ended jobs' workspaces, uploads and prepared data."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from sqlalchemy import func, select, text, update
from sqlalchemy.orm import Session

from service.contract.states import ENDED, HELD, LIVE, Stage
from service.store import removals
from service.store.database import clock
from service.store.jobs import lineage, state
from service.store.scope import EVERYTHING
from service.store.tables.files import FileRow
from service.store.tables.jobs import AttemptRow, CheckpointRow, JobRow
from service.store.tracking import removals as mlflow_removals

# An arbitrary constant, different from those of our other advisory locks.
_POSTGRES_LOCK = 0x4B454550


def lock_products(session: Session) -> None:
    """Until this transaction ends, no other one retries a job or removes prepared data.

    A retry checks on disk what earlier stages made, so it must not be removed meanwhile.
    On SQLite every writing transaction is the only one.
    """
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _POSTGRES_LOCK})


# ---- workspaces ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class EndedJob:
    id: str
    ended_at: datetime


def ended_jobs(session: Session) -> list[EndedJob]:
    """Jobs whose workspace may go, the longest ended first: MLflow has all of their data."""
    query = (
        select(JobRow.id, JobRow.ended_at)
        .where(
            JobRow.state.in_(sorted(ENDED)),
            JobRow.tracking_final.is_(True),
            JobRow.workspace_pruned_at.is_(None),
            JobRow.ended_at.is_not(None),
            JobRow.epoch > 0,  # the others have no files
        )
        .order_by(JobRow.ended_at, JobRow.id)
    )
    return [EndedJob(job_id, at) for job_id, at in session.execute(query) if at is not None]


def prune_workspace(session: Session, job: EndedJob) -> list[str]:
    """Schedule the removal of all attempts' folders of a job that has not changed since it was
    read. Does nothing if it has, or while an unfinished job starts from its model.

    The log stays, and so do the rows, with the time in `workspace_pruned_at`.
    """
    row = state.lock(
        session,
        EVERYTHING,
        job.id,
        JobRow.state.in_(sorted(ENDED)),
        JobRow.ended_at == job.ended_at,
        JobRow.workspace_pruned_at.is_(None),
    )
    if row is None or lineage.derived(session, EVERYTHING, job.id, only_live=True):
        return []
    now = clock(session)
    row.workspace_pruned_at = now
    pruned = session.scalars(
        update(CheckpointRow)
        .where(CheckpointRow.job_id == job.id, CheckpointRow.pruned_at.is_(None))
        .values(pruned_at=now)
        .returning(CheckpointRow.step)
    ).all()
    state.append_event(session, row, "workspace_pruned", {"checkpoints": sorted(pruned)}, now)
    epochs = session.scalars(select(AttemptRow.epoch).where(AttemptRow.job_id == job.id))
    # Each by its name: a retry makes new ones in the same folder.
    folders = [f"{removals.workspace(job.id)}/attempts/{epoch}" for epoch in epochs]
    removals.schedule(session, folders)
    mlflow_removals.schedule(session, row.mlflow_run_id, is_final=True, job_id=job.id)
    return folders


# ---- uploads ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Upload:
    id: str
    bytes: int
    used_at: datetime
    """When it was uploaded, or last named by a job that was made or retried."""


def uploads(session: Session) -> list[Upload]:
    """All of them, the longest unused first."""
    used_at = func.coalesce(FileRow.last_used_at, FileRow.created_at)
    query = select(FileRow.id, FileRow.bytes, used_at).order_by(used_at, FileRow.id)
    return [Upload(*row) for row in session.execute(query)]


# ---- prepared data ------------------------------------------------------------------------------


def prepared_in_use(session: Session) -> set[str]:
    """Names of the prepared data of all jobs that have not ended."""
    results = session.scalars(
        select(JobRow.results).where(JobRow.state.in_(LIVE), JobRow.stage != Stage.PREPARE.value)
    )
    return {
        Path(result[Stage.PREPARE]["prepared_dir"]).name
        for result in results
        if Stage.PREPARE in result
    }


def first_running_prepare(session: Session) -> datetime | None:
    """When the longest running `prepare` began: what it has found is not in its job's row yet."""
    query = (
        select(func.min(AttemptRow.started_at))
        .join(JobRow, JobRow.id == AttemptRow.job_id)
        .where(
            JobRow.state.in_(sorted(HELD)),
            JobRow.stage == Stage.PREPARE.value,
            AttemptRow.epoch == JobRow.epoch,
        )
    )
    return session.scalar(query)
