"""Jobs that the tests of the command line change in the database."""

from typing import Any

from sqlalchemy import update

from service.store.database import Database, db_now
from service.store.models import JobRow


def write(store: Database, job_id: str, **values: Any) -> None:
    with store.write() as session:
        session.execute(update(JobRow).where(JobRow.id == job_id).values(**values))


def end(store: Database, job_id: str, state: str, **values: Any) -> None:
    write(store, job_id, state=state, ended_at=db_now(), **values)
