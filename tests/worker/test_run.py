import pytest

from service.contract.states import JobState
from service.settings import Settings
from service.store import jobs
from service.store.database import Database, db_now
from tests.stubs import stage
from tests.support.factories import make_job
from tests.support.flaky import Flaky
from tests.support.job_rows import get, history_of, put
from worker.run import Receiver
from worker.supervision.supervisor import Supervisor
from worker.tracking.trackers import NullTracker


@pytest.fixture
def rung() -> list[jobs.Message]:
    return []


@pytest.fixture
def receiver(flaky: Flaky, settings: Settings, rung: list[jobs.Message]) -> Receiver:
    def ring(message: jobs.Message) -> bool:
        # After commit: whoever is rung can claim.
        assert get(flaky, message.job_id).state == "queued"
        rung.append(message)
        return True

    tracker = NullTracker()
    supervisor = Supervisor(flaky, settings, tracker, command=stage.command)
    return Receiver(settings, flaky, tracker, supervisor, ring, gpus=())


def wake(receiver: Receiver, job_id: str) -> None:
    receiver.wake(job_id, "worker-1", ["cpu", "gpu"])


class TestWake:
    def test_each_stage_rings_for_the_next_and_the_last_for_none(
        self, database: Database, receiver: Receiver, rung: list[jobs.Message]
    ) -> None:
        job_id = make_job(database, priority=3)
        for _ in range(3):
            wake(receiver, job_id)
        assert get(database, job_id).state == "succeeded"
        assert rung == [jobs.Message(job_id, "gpu", 3), jobs.Message(job_id, "cpu", 3)]

    def test_completes_the_tracking_of_the_job_it_ended(
        self, database: Database, receiver: Receiver
    ) -> None:
        job_id = make_job(database, metadata={"stub.prepare": "fail:unreadable_row"})
        wake(receiver, job_id)
        row = get(database, job_id)
        assert (row.state, row.tracking_final) == ("failed", True)

    def test_completes_the_tracking_of_a_job_that_has_ended(
        self, database: Database, receiver: Receiver
    ) -> None:
        job_id = make_job(database)
        put(database, job_id, state=JobState.CANCELLED, ended_at=db_now())
        wake(receiver, job_id)
        assert get(database, job_id).tracking_final

    def test_a_retry_waits_for_its_time_unrung(
        self, database: Database, receiver: Receiver, rung: list[jobs.Message]
    ) -> None:
        job_id = make_job(database, metadata={"stub.prepare": "fail:network"})
        slow = receiver.settings.model_copy(update={"retry_backoff_seconds": 60})
        supervisor = Supervisor(receiver.database, slow, receiver.tracker, command=stage.command)
        patient = Receiver(
            slow, receiver.database, receiver.tracker, supervisor, receiver.ring, gpus=()
        )
        wake(patient, job_id)
        assert get(database, job_id).retry_count == 1
        assert rung == []

    def test_drops_what_is_not_to_be_won(
        self, database: Database, receiver: Receiver, rung: list[jobs.Message]
    ) -> None:
        running = make_job(database)
        put(database, running, state=JobState.RUNNING)
        for job_id in (running, "job-unknown"):
            wake(receiver, job_id)
        assert get(database, running).epoch == 0
        assert rung == []

    def test_a_claim_whose_commit_got_no_answer_is_run(
        self, database: Database, receiver: Receiver, flaky: Flaky
    ) -> None:
        job_id = make_job(database)
        flaky.loses_answer_of = "stage_started"
        wake(receiver, job_id)
        assert flaky.refused == 1
        types = [row.type for row in history_of(database, job_id)]
        assert types == ["submitted", "stage_started", "stage_finished"]

    def test_a_claim_is_settled_when_the_database_is_back(
        self, database: Database, receiver: Receiver, flaky: Flaky
    ) -> None:
        """Given up, it would be counted as a lost worker when its lease has run out."""
        job_id = make_job(database)
        flaky.loses_answer_of = "stage_started"
        flaky.then_away_for = 0.5
        wake(receiver, job_id)
        assert flaky.refused > 1
        types = [row.type for row in history_of(database, job_id)]
        assert types == ["submitted", "stage_started", "stage_finished"]

    def test_a_database_that_is_away_changes_nothing(
        self, database: Database, receiver: Receiver, flaky: Flaky
    ) -> None:
        job_id = make_job(database)
        flaky.is_away = True
        wake(receiver, job_id)
        assert (get(database, job_id).state, get(database, job_id).epoch) == ("queued", 0)
