"""The live workers: each writes its own row and renews it with every heartbeat."""

from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import delete, update
from sqlalchemy.orm import Session

from service.store.database import clock, db_now
from service.store.tables.workers import WorkerRow


@dataclass(frozen=True)
class WorkerInfo:
    id: str
    hostname: str
    pid: int
    queues: list[str]
    devices: list[dict[str, Any]]
    version: str
    slots: int = 1
    """How many stages it runs at once."""
    has_hub_token: bool = False
    """Whether it can push to the Hub."""
    packages: list[str] | None = None
    """Which of `worker_needs.PACKAGES` it has; None if that is unknown."""
    doctor: dict[str, Any] | None = None
    """What its quick checks found; None until they have ended."""


def register(session: Session, info: WorkerInfo) -> None:
    """Write the worker's row; a row that an earlier worker of the same name left is replaced."""
    now = clock(session)
    session.merge(WorkerRow(**asdict(info), started_at=now, last_seen_at=now))
    session.flush()


def seen(session: Session, worker_id: str) -> bool:
    """The worker lives; False if its row was removed and it must register again."""
    found = session.scalar(
        update(WorkerRow)
        .where(WorkerRow.id == worker_id)
        .values(last_seen_at=db_now())
        .returning(WorkerRow.id)
    )
    return found is not None


def examined(session: Session, worker_id: str, doctor: dict[str, Any]) -> None:
    """Note what the worker's quick checks found."""
    session.execute(update(WorkerRow).where(WorkerRow.id == worker_id).values(doctor=doctor))


def remove(session: Session, worker_id: str) -> None:
    session.execute(delete(WorkerRow).where(WorkerRow.id == worker_id))


def remove_silent(session: Session, seconds: float) -> list[str]:
    """Remove workers without a heartbeat for this long; returns their ids."""
    statement = delete(WorkerRow).where(WorkerRow.last_seen_at < db_now(-seconds))
    return list(session.scalars(statement.returning(WorkerRow.id)))
