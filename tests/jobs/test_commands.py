from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import select

from service.contract.states import JobState
from service.errors import JobEndedError, JobNotFoundError, WrongStateError
from service.jobs.commands import cancel, delete, pause, retry
from service.jobs.dispatch import Dispatcher
from service.settings import Settings
from service.store.database import Database, db_now
from service.store.jobs import claims
from service.store.scope import EVERYTHING
from service.store.tables.jobs import EventRow, JobRow
from tests.support.factories import make_job
from tests.support.store.job_rows import get, put
from tests.support.threads import all_at_once


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home")


@pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled"])
def test_an_ended_job_cannot_be_cancelled(
    database: Database, unreachable: Dispatcher, state: str
) -> None:
    job_id = make_job(database)
    put(database, job_id, state=state)
    with pytest.raises(JobEndedError) as caught:
        cancel(database, unreachable, EVERYTHING, job_id)
    assert caught.value.extra == {"state": state}


class TestRaces:
    """The second action takes the first one's result into account, and reports it."""

    def failed(self, database: Database) -> str:
        job_id = make_job(database)
        put(database, job_id, state="failed", ended_at=db_now())
        return job_id

    def test_of_many_retries_one_is_made(
        self, database: Database, unreachable: Dispatcher, settings: Settings
    ) -> None:
        job_id = self.failed(database)
        again = partial(retry, database, unreachable, settings, EVERYTHING, job_id)
        outcomes = all_at_once(*[again] * 6)
        assert outcomes.count(JobState.QUEUED) == 1
        assert [type(each) for each in outcomes].count(WrongStateError) == 5
        with database.read() as session:
            types = session.scalars(select(EventRow.type).where(EventRow.job_id == job_id)).all()
        assert types.count("retried") == 1

    def test_a_retry_and_a_deletion(
        self, database: Database, unreachable: Dispatcher, settings: Settings
    ) -> None:
        for _ in range(8):
            job_id = self.failed(database)
            workspace = settings.workspace(job_id)
            workspace.mkdir(parents=True)
            retried, deleted = all_at_once(
                partial(retry, database, unreachable, settings, EVERYTHING, job_id),
                partial(delete, database, settings, EVERYTHING, job_id),
            )
            with database.read() as session:
                kept = session.get(JobRow, job_id)
            if kept is not None:
                assert (retried, kept.state) == (JobState.QUEUED, "queued")
                assert isinstance(deleted, WrongStateError)
            else:
                assert isinstance(retried, JobNotFoundError)
                assert deleted is None
            assert workspace.exists() == (kept is not None)

    def test_a_pause_and_a_claim(self, database: Database) -> None:
        for _ in range(8):
            job_id = make_job(database)

            def claim(job_id: str = job_id) -> object:
                with database.write() as session:
                    return claims.claim(
                        session, job_id, "w", queues=["cpu"], gpus=(), lease_seconds=60
                    )

            paused, claimed = all_at_once(partial(pause, database, EVERYTHING, job_id), claim)
            assert paused == get(database, job_id).state
            assert paused == (JobState.PAUSED if claimed is None else JobState.PAUSING)
