"""Cancel, pause, shutdown and a lost claim stop the stage of a running attempt."""

import time

import pytest

from service.contract.states import JobState
from service.settings import Settings
from service.store.database import Database, db_now
from service.store.jobs import endings
from service.store.jobs import state as jobs
from tests.supervision.support import (
    ask_to_cancel,
    ask_to_pause,
    asked,
    attempt,
    children,
    meanwhile,
    ready,
    run,
    started,
    supervisor,
)
from tests.support.factories import POLICY, claim_job, make_job
from tests.support.servers import services
from tests.support.store.databases import on_sqlite
from tests.support.store.flaky import Flaky
from tests.support.store.job_rows import get, history_of, put
from worker.lifecycle.shutdown import Shutdown

pytestmark = pytest.mark.long


@pytest.mark.usefixtures("processes")
class TestStop:
    @pytest.mark.parametrize("behaviour", ["hang", "deaf"])
    def test_cancel(self, database: Database, settings: Settings, behaviour: str) -> None:
        job_id = make_job(database, metadata={"stub.prepare": behaviour})
        thread = meanwhile(lambda: ask_to_cancel(database, job_id), when=started(settings, job_id))
        begun = time.monotonic()
        assert run(database, settings, job_id) is JobState.CANCELLED
        thread.join()
        assert time.monotonic() - begun < 15
        assert attempt(database, job_id, 1).outcome == "cancelled"
        assert children() == []

    def test_a_worker_that_shuts_down_gives_the_job_back(
        self, database: Database, settings: Settings
    ) -> None:
        """Immediately, in a stage that has nothing to lose."""
        job_id = make_job(database, metadata={"stub.prepare": "hang"})
        claimed, shutdown = claim_job(database, job_id), Shutdown()
        thread = meanwhile(shutdown.request, when=started(settings, job_id))
        begun = time.monotonic()
        assert supervisor(database, settings, shutdown).supervise(claimed) is JobState.QUEUED
        thread.join()
        assert time.monotonic() - begun < settings.drain_grace_seconds
        assert (attempt(database, job_id, 1).outcome, get(database, job_id).crash_count) == (
            "released",
            0,
        )

    def test_a_lost_claim_ends_the_stage_and_writes_nothing(
        self, database: Database, settings: Settings
    ) -> None:
        job_id = make_job(database, metadata={"stub.prepare": "deaf"})

        def lose() -> None:
            put(database, job_id, lease_until=db_now(-1))
            with database.write() as session:
                endings.expire(session, job_id, POLICY)

        thread = meanwhile(lose, when=started(settings, job_id))
        assert run(database, settings, job_id) is None
        thread.join()
        row = get(database, job_id)
        assert (row.state, row.epoch) == ("queued", 2)
        assert attempt(database, job_id, 1).outcome == "lost"
        assert children() == []

    def test_without_a_beat_the_child_is_killed(
        self, database: Database, settings: Settings, flaky: Flaky
    ) -> None:
        job_id = make_job(database, metadata={"stub.prepare": "deaf"})
        claimed = claim_job(flaky, job_id)
        killed: list[bool] = []

        def outage() -> None:
            flaky.is_unreachable = True
            services.wait_until(lambda: not children(), 15, "the child's end")
            killed.append(True)
            flaky.is_unreachable = False

        thread = meanwhile(outage, when=started(settings, job_id))
        assert supervisor(flaky, settings).supervise(claimed) is JobState.QUEUED
        thread.join()
        assert killed == [True]
        assert attempt(database, job_id, 1).outcome == "released"


@on_sqlite
class TestSoftStop:
    @pytest.mark.usefixtures("processes")
    @pytest.mark.parametrize(("action", "state"), [("pause", "paused"), ("shutdown", "queued")])
    def test_training_resumes_later_from_the_current_step(
        self, database: Database, settings: Settings, action: str, state: str
    ) -> None:
        job_id = make_job(database, metadata={"stub.train": "patient", "stub.attempts": "1"})
        run(database, settings, job_id)
        claimed, shutdown = claim_job(database, job_id), Shutdown()

        def ask() -> None:
            ask_to_pause(database, job_id) if action == "pause" else shutdown.request()

        thread = meanwhile(ask, when=ready(settings, job_id, 2))
        assert supervisor(database, settings, shutdown).supervise(claimed) == state
        thread.join()
        row, ended = get(database, job_id), attempt(database, job_id, 2)
        assert (row.crash_count, row.retry_count, row.worker_id) == (0, 0, None)
        assert (ended.outcome, ended.failure) == ("released", None)
        last = history_of(database, job_id)[-1]
        assert (last.type, last.data["to"]) == ("released", state)
        if action == "pause":
            with database.write() as session:
                jobs.move(session, job_id, JobState.PAUSED, JobState.QUEUED, "resume_requested")
        assert run(database, settings, job_id) is JobState.QUEUED
        assert attempt(database, job_id, 3).resumed_from_step == 4
        assert get(database, job_id).stage == "publish"

    @pytest.mark.usefixtures("processes")
    def test_after_the_grace_it_is_no_longer_soft(
        self, database: Database, settings: Settings
    ) -> None:
        settings = settings.model_copy(update={"drain_grace_seconds": 0.5})
        job_id = make_job(database, metadata={"stub.prepare": "stubborn"})
        thread = meanwhile(lambda: ask_to_pause(database, job_id), when=ready(settings, job_id, 1))
        assert run(database, settings, job_id) is JobState.PAUSED
        thread.join()
        assert children() == []

    @pytest.mark.usefixtures("processes")
    @pytest.mark.parametrize("how", ["cancel", "second signal", "timeout"])
    def test_an_urgent_stop_does_not_wait_for_the_grace(
        self, database: Database, settings: Settings, how: str
    ) -> None:
        limit = {"timeout_seconds": 5} if how == "timeout" else {}
        job_id = make_job(database, metadata={"stub.prepare": "stubborn"}, **limit)
        claimed, shutdown = claim_job(database, job_id), Shutdown()

        def ask() -> None:
            shutdown.request()
            services.wait_until(asked(settings, job_id, 1), 20, "the soft stop")
            if how == "cancel":
                ask_to_cancel(database, job_id)
            if how == "second signal":
                shutdown.request()

        thread = meanwhile(ask, when=ready(settings, job_id, 1))
        begun = time.monotonic()
        state = supervisor(database, settings, shutdown).supervise(claimed)
        thread.join()
        assert time.monotonic() - begun < 20 < settings.drain_grace_seconds
        assert state == {"cancel": "cancelled", "second signal": "queued", "timeout": "failed"}[how]

    def test_a_stage_that_finishes_instead_has_finished(
        self, database: Database, settings: Settings
    ) -> None:
        """And the job is paused at its next stage."""
        job_id = make_job(database)
        claimed = claim_job(database, job_id)
        ask_to_pause(database, job_id)
        with database.write() as session:
            finished = endings.Ending.finished({})
            state = endings.end(session, job_id, claimed.epoch, finished, POLICY)
        assert state is JobState.PAUSED
        assert (get(database, job_id).stage, get(database, job_id).stage_attempt) == ("train", 0)
