"""Files and folders that are scheduled for removal.

A folder is removed only after the transaction that schedules it, by whoever comes first; the
table `removals` remembers it until then (service/jobs/removal.py).
"""

from collections.abc import Sequence
from datetime import timedelta

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from service.store.database import clock, db_now
from service.store.tables.files import RemovalRow


def workspace(job_id: str) -> str:
    """The job's folder, relative to the home."""
    return f"jobs/{job_id}"


def schedule(session: Session, paths: Sequence[str], after_seconds: float = 0.0) -> None:
    """Note what the sweep removes after COMMIT, or this much later; paths relative to the home."""
    at = clock(session) + timedelta(seconds=after_seconds)
    for path in paths:
        session.merge(RemovalRow(path=path, created_at=at))
    session.flush()


def due(session: Session, limit: int) -> list[str]:
    """What is due for removal, the oldest first."""
    query = (
        select(RemovalRow.path)
        .where(RemovalRow.created_at <= db_now())
        .order_by(RemovalRow.created_at, RemovalRow.path)
        .limit(limit)
    )
    return list(session.scalars(query))


def forget(session: Session, path: str) -> None:
    """Forget a path that was removed, or must stay after all."""
    session.execute(delete(RemovalRow).where(RemovalRow.path == path))
