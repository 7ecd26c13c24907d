"""Jobs that the tests of the command line change in the database."""

from typing import Any

from service.contract.stage.events import StageEvent
from service.store.database import Database, db_now
from service.store.jobs import attempt_reports
from tests.support.factories import claim_job
from tests.support.store.job_rows import put


def end(store: Database, job_id: str, state: str, **values: Any) -> None:
    put(store, job_id, state=state, ended_at=db_now(), **values)


def claim(store: Database, job_id: str) -> int:
    return claim_job(store, job_id, "w1").epoch


def record(store: Database, job_id: str, *events: StageEvent) -> None:
    with store.write() as session:
        assert attempt_reports.record(session, job_id, 1, events) is not None
