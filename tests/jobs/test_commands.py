import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import select

from service.contract.states import JobState
from service.errors import DomainError, JobEndedError, JobNotFoundError, WrongStateError
from service.jobs.commands import cancel, delete, pause, retry
from service.jobs.dispatch import Dispatcher
from service.settings import Settings
from service.store import claims
from service.store.database import Database, db_now
from service.store.models import EventRow, JobRow
from service.store.scope import EVERYTHING
from tests.support.factories import make_job
from tests.support.job_rows import get, put


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

    def at_once(self, *actions: Callable[[], object]) -> list[object]:
        """What each of them returned or raised."""
        barrier = threading.Barrier(len(actions))
        outcomes: list[object] = [None] * len(actions)

        def run(number: int, action: Callable[[], object]) -> None:
            barrier.wait()
            try:
                outcomes[number] = action()
            except DomainError as error:
                outcomes[number] = type(error)

        threads = [
            threading.Thread(target=run, args=(number, action))
            for number, action in enumerate(actions)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return outcomes

    def failed(self, database: Database) -> str:
        job_id = make_job(database)
        put(database, job_id, state="failed", ended_at=db_now())
        return job_id

    def test_of_many_retries_one_is_made(
        self, database: Database, unreachable: Dispatcher, settings: Settings
    ) -> None:
        job_id = self.failed(database)
        outcomes = self.at_once(
            *[partial(retry, database, unreachable, settings, EVERYTHING, job_id)] * 6
        )
        assert outcomes.count(JobState.QUEUED) == 1
        assert outcomes.count(WrongStateError) == 5
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
            outcomes = self.at_once(
                partial(retry, database, unreachable, settings, EVERYTHING, job_id),
                partial(delete, database, settings, EVERYTHING, job_id),
            )
            with database.read() as session:
                kept = session.get(JobRow, job_id)
            if kept is not None:
                assert (outcomes, kept.state) == ([JobState.QUEUED, WrongStateError], "queued")
            else:
                assert outcomes == [JobNotFoundError, None]
            assert workspace.exists() == (kept is not None)

    def test_a_pause_and_a_claim(self, database: Database) -> None:
        for _ in range(8):
            job_id = make_job(database)

            def claim(job_id: str = job_id) -> object:
                with database.write() as session:
                    return claims.claim(
                        session, job_id, "w", queues=["cpu"], gpus=(), lease_seconds=60
                    )

            paused, claimed = self.at_once(partial(pause, database, EVERYTHING, job_id), claim)
            assert paused == get(database, job_id).state
            assert paused == (JobState.PAUSED if claimed is None else JobState.PAUSING)
