"""Jobs that the tests of the command line change in the database."""

from typing import Any

from sqlalchemy import update

from service.contract.events import StageEvent
from service.store import claims, history
from service.store.database import Database, db_now
from service.store.models import JobRow


def write(store: Database, job_id: str, **values: Any) -> None:
    with store.write() as session:
        session.execute(update(JobRow).where(JobRow.id == job_id).values(**values))


def end(store: Database, job_id: str, state: str, **values: Any) -> None:
    write(store, job_id, state=state, ended_at=db_now(), **values)


def claim(store: Database, job_id: str) -> int:
    with store.write() as session:
        found = claims.claim(session, job_id, "w1", queues=["cpu"], gpus=[], lease_seconds=60)
    assert found is not None
    return found.epoch


def record(store: Database, job_id: str, *events: StageEvent) -> None:
    with store.write() as session:
        assert history.record(session, job_id, 1, events) is not None
