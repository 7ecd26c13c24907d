"""Runs in MLflow whose files workers remove. A row is written in the transaction that removes the
job, and deleted when MLflow has done it: no crash and no outage of MLflow leaves a model there."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from service.store.database import db_now
from service.store.tables.jobs import JobRow
from service.store.tables.tracking import MlflowRemovalRow

_UPLOAD_SECONDS: Final = 300.0
"""A worker that was still sending the job's files may send one for so long after the job's end."""


@dataclass(frozen=True)
class Removal:
    run_id: str
    with_run: bool
    """The job is deleted; otherwise only its files were removed to make room."""
    is_needed: bool
    """False if the job was retried since then: its run gets new files."""
    scheduled_at: datetime
    seconds: float
    """Since then."""


def schedule(
    session: Session, run_id: str | None, *, is_final: bool, job_id: str | None = None
) -> None:
    """After COMMIT a worker removes the run's files. `is_final`: MLflow has all of its data.
    `job_id`: of the job that stays, with its run."""
    if run_id is None:
        return
    after = 0.0 if is_final else _UPLOAD_SECONDS
    row = MlflowRemovalRow(
        run_id=run_id, job_id=job_id, created_at=db_now(), retry_at=db_now(after)
    )
    session.merge(row)
    session.flush()


def due(session: Session, limit: int) -> list[str]:
    """Ids of runs, the longest due first."""
    query = (
        select(MlflowRemovalRow.run_id)
        .where(MlflowRemovalRow.retry_at <= db_now())
        .order_by(MlflowRemovalRow.retry_at)
        .limit(limit)
    )
    return list(session.scalars(query))


def postpone(session: Session, run_ids: list[str], seconds: float) -> None:
    session.execute(
        update(MlflowRemovalRow)
        .where(MlflowRemovalRow.run_id.in_(run_ids))
        .values(retry_at=db_now(seconds)),
        execution_options={"synchronize_session": False},
    )


def load(session: Session, run_id: str) -> Removal | None:
    found = session.execute(
        select(MlflowRemovalRow, db_now(), JobRow.id, JobRow.workspace_pruned_at)
        .join(JobRow, JobRow.id == MlflowRemovalRow.job_id, isouter=True)
        .where(MlflowRemovalRow.run_id == run_id)
    ).one_or_none()
    if found is None:
        return None
    row, now, job_id, pruned_at = found
    return Removal(
        run_id=run_id,
        with_run=row.job_id is None,
        is_needed=job_id is None or pruned_at is not None,
        scheduled_at=row.created_at,
        seconds=(now - row.created_at).total_seconds(),
    )


def done(session: Session, removal: Removal) -> None:
    """Unless it was scheduled again meanwhile."""
    session.execute(
        delete(MlflowRemovalRow).where(
            MlflowRemovalRow.run_id == removal.run_id,
            MlflowRemovalRow.created_at == removal.scheduled_at,
        )
    )
