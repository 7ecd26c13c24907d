import pytest

from service.contract.routing import Message, MessageKind
from service.contract.search.spec import SearchSpec
from service.contract.states import JobState
from service.searches import commands
from service.settings import Settings
from service.store.database import Database, db_now
from service.store.scope import EVERYTHING
from service.store.searches import state
from service.store.tables.projects import DEFAULT_PROJECT
from service.store.tracking import removals
from tests.searches.simulated_worker import search_spec
from tests.support import forked_stubs
from tests.support.factories import make_job
from tests.support.store.flaky import Flaky
from tests.support.store.job_rows import get, history_of, put
from worker.run import JobRunner
from worker.supervision.supervisor import Supervisor
from worker.tracking.trackers import NullTracker


@pytest.fixture
def enqueued() -> list[Message]:
    return []


@pytest.fixture
def job_runner(
    flaky: Flaky, settings: Settings, enqueued: list[Message], processes: None
) -> JobRunner:
    def enqueue(message: Message) -> bool:
        # After commit: whoever receives it can claim.
        assert get(flaky, message.id).state == "queued"
        enqueued.append(message)
        return True

    tracker = NullTracker()
    supervisor = Supervisor(
        flaky, settings, tracker, command=forked_stubs.command, start=forked_stubs.start
    )
    return JobRunner(settings, flaky, tracker, supervisor, enqueue, gpus=())


def wake(job_runner: JobRunner, job_id: str) -> None:
    job_runner.wake(job_id, "worker-1", ["cpu", "gpu"])


class TestWake:
    def test_each_stage_rings_for_the_next_and_the_last_for_none(
        self, database: Database, job_runner: JobRunner, enqueued: list[Message]
    ) -> None:
        job_id = make_job(database, priority=3)
        for _ in range(3):
            wake(job_runner, job_id)
        assert get(database, job_id).state == "succeeded"
        assert enqueued == [
            Message(MessageKind.JOB, job_id, "gpu", 3),
            Message(MessageKind.JOB, job_id, "cpu", 3),
        ]

    def test_completes_the_tracking_of_the_job_it_ended(
        self, database: Database, job_runner: JobRunner
    ) -> None:
        job_id = make_job(database, metadata={"stub.prepare": "fail:unreadable_row"})
        wake(job_runner, job_id)
        row = get(database, job_id)
        assert (row.state, row.tracking_final) == ("failed", True)

    def test_completes_the_tracking_of_a_job_that_has_ended(
        self, database: Database, job_runner: JobRunner
    ) -> None:
        job_id = make_job(database)
        put(database, job_id, state=JobState.CANCELLED, ended_at=db_now())
        wake(job_runner, job_id)
        assert get(database, job_id).tracking_final

    def test_completes_the_tracking_of_a_search(
        self, database: Database, job_runner: JobRunner
    ) -> None:
        spec = SearchSpec.model_validate(search_spec())
        search_id = commands.submit(database, DEFAULT_PROJECT, spec).search_id
        commands.cancel(database, EVERYTHING, search_id)
        for unknown_or_known in ("search-unknown", search_id):
            job_runner.ship_search(unknown_or_known)
        with database.read() as session:
            assert state.get(session, EVERYTHING, search_id).tracking_final

    def test_removes_the_files_of_a_deleted_jobs_run(
        self, database: Database, job_runner: JobRunner
    ) -> None:
        with database.write() as session:
            removals.schedule(session, "a1", is_final=True)
        for run_id in ("unknown", "a1"):
            job_runner.remove_run(run_id)
        with database.read() as session:
            assert removals.due(session, 10) == []

    def test_a_retry_waits_for_its_time_unrung(
        self, database: Database, job_runner: JobRunner, enqueued: list[Message]
    ) -> None:
        job_id = make_job(database, metadata={"stub.prepare": "fail:network"})
        slow = job_runner.settings.model_copy(update={"retry_backoff_seconds": 60})
        supervisor = Supervisor(
            job_runner.database,
            slow,
            job_runner.tracker,
            command=forked_stubs.command,
            start=forked_stubs.start,
        )
        patient = JobRunner(
            slow, job_runner.database, job_runner.tracker, supervisor, job_runner.enqueue, gpus=()
        )
        wake(patient, job_id)
        assert get(database, job_id).retry_count == 1
        assert enqueued == []

    def test_drops_jobs_that_cannot_be_claimed(
        self, database: Database, job_runner: JobRunner, enqueued: list[Message]
    ) -> None:
        running = make_job(database)
        put(database, running, state=JobState.RUNNING)
        for job_id in (running, "job-unknown"):
            wake(job_runner, job_id)
        assert get(database, running).epoch == 0
        assert enqueued == []

    def test_a_claim_whose_commit_got_no_answer_is_run(
        self, database: Database, job_runner: JobRunner, flaky: Flaky
    ) -> None:
        job_id = make_job(database)
        flaky.loses_answer_of = "stage_started"
        wake(job_runner, job_id)
        assert flaky.refused == 1
        types = [row.type for row in history_of(database, job_id)]
        assert types == ["submitted", "stage_started", "stage_finished"]

    def test_a_claim_is_settled_when_the_database_is_back(
        self, database: Database, job_runner: JobRunner, flaky: Flaky
    ) -> None:
        """If it gave up, the expired lease would count as a lost worker."""
        job_id = make_job(database)
        flaky.loses_answer_of = "stage_started"
        flaky.then_unreachable_for = 0.5
        wake(job_runner, job_id)
        assert flaky.refused > 1
        types = [row.type for row in history_of(database, job_id)]
        assert types == ["submitted", "stage_started", "stage_finished"]

    def test_an_unreachable_database_changes_nothing(
        self, database: Database, job_runner: JobRunner, flaky: Flaky
    ) -> None:
        job_id = make_job(database)
        flaky.is_unreachable = True
        wake(job_runner, job_id)
        assert (get(database, job_id).state, get(database, job_id).epoch) == ("queued", 0)
