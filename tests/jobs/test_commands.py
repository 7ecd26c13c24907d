import threading

import pytest
from sqlalchemy import func, select

from service.contract.states import JobState
from service.errors import (
    DomainError,
    IdempotencyInFlightError,
    IdempotencyKeyReusedError,
    JobEndedError,
    JobNotFoundError,
)
from service.jobs.commands import Submitted, cancel, submit
from service.jobs.dispatch import Dispatcher
from service.settings import Settings
from service.store import idempotency, jobs
from service.store.database import Database
from service.store.models import EventRow, JobRow
from tests.factories import claim_job, make_job, make_spec
from tests.store.test_jobs import get, put


@pytest.fixture
def away() -> Dispatcher:
    """No broker is configured: as if it were always away."""
    return Dispatcher(Settings(redis_url=None))


def count(database: Database) -> int:
    with database.read() as session:
        return session.scalar(select(func.count()).select_from(JobRow)) or 0


class TestSubmit:
    def test_makes_a_queued_job_that_is_due(self, database: Database, away: Dispatcher) -> None:
        submitted = submit(database, away, make_spec(name="one"))
        assert submitted.created
        assert get(database, submitted.job_id).state == "queued"
        with database.read() as session:
            assert [m.job_id for m in jobs.due(session, 10)] == [submitted.job_id]

    def test_a_sent_message_is_not_sent_again_at_once(self, database: Database) -> None:
        class Answering(Dispatcher):
            def wake(self, job_id: str, queue: str, priority: int) -> bool:
                # After commit: whoever is rung finds the job.
                assert get(database, job_id).state == "queued"
                return (queue, priority) == ("cpu", 3)

        submit(database, Answering(Settings(redis_url=None)), make_spec(priority=3))
        with database.read() as session:
            assert jobs.due(session, 10) == []


class TestIdempotency:
    def test_same_key_and_request_is_the_same_job(
        self, database: Database, away: Dispatcher
    ) -> None:
        first = submit(database, away, make_spec(), idempotency_key="k", request_sha256="a")
        second = submit(database, away, make_spec(), idempotency_key="k", request_sha256="a")
        assert second == Submitted(first.job_id, created=False)
        assert count(database) == 1

    def test_without_a_digest_the_spec_is_compared(
        self, database: Database, away: Dispatcher
    ) -> None:
        first = submit(database, away, make_spec(name="a"), idempotency_key="k")
        assert (
            submit(database, away, make_spec(name="a"), idempotency_key="k").job_id == first.job_id
        )
        with pytest.raises(IdempotencyKeyReusedError):
            submit(database, away, make_spec(name="b"), idempotency_key="k")

    def test_same_key_with_another_request(self, database: Database, away: Dispatcher) -> None:
        submit(database, away, make_spec(), idempotency_key="k", request_sha256="a")
        with pytest.raises(IdempotencyKeyReusedError):
            submit(database, away, make_spec(), idempotency_key="k", request_sha256="b")
        assert count(database) == 1

    def test_other_keys_and_no_key_make_other_jobs(
        self, database: Database, away: Dispatcher
    ) -> None:
        for key in ("k", "l", None, None):
            assert submit(database, away, make_spec(), idempotency_key=key).created
        assert count(database) == 4

    def test_many_at_once_make_one_job(self, database: Database, away: Dispatcher) -> None:
        """Each gets the job or, on Postgres, hears that the first is still in flight."""
        barrier = threading.Barrier(8)
        answers: list[Submitted | DomainError] = []

        def post() -> None:
            barrier.wait()
            try:
                answers.append(submit(database, away, make_spec(), idempotency_key="k"))
            except IdempotencyInFlightError as error:
                answers.append(error)

        threads = [threading.Thread(target=post) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        made = [answer for answer in answers if isinstance(answer, Submitted)]
        assert len(answers) == 8
        assert [answer.created for answer in made].count(True) == 1
        assert len({answer.job_id for answer in made}) == 1
        assert count(database) == 1

    def test_in_flight_on_postgres(self, postgres_url: str, away: Dispatcher) -> None:
        database = Database(postgres_url)
        with database.write() as session:
            assert idempotency.earlier_job(session, "in-flight", "a") is None
            with pytest.raises(IdempotencyInFlightError):
                submit(database, away, make_spec(), idempotency_key="in-flight")
            # Another key is not held up.
            assert submit(database, away, make_spec(), idempotency_key="free").created
        database.dispose()


class TestCancel:
    def test_a_waiting_job_ends_at_once(self, database: Database, away: Dispatcher) -> None:
        job_id = make_job(database)
        assert cancel(database, away, job_id) is JobState.CANCELLED
        with pytest.raises(JobEndedError):
            cancel(database, away, job_id)

    def test_asking_twice_changes_nothing(self, database: Database, away: Dispatcher) -> None:
        job_id = make_job(database)
        claim_job(database, job_id)
        assert cancel(database, away, job_id) is JobState.CANCELLING
        assert cancel(database, away, job_id) is JobState.CANCELLING
        with database.read() as session:
            types = list(session.scalars(select(EventRow.type).order_by(EventRow.seq)))
        assert types == ["submitted", "stage_started", "cancel_requested"]

    @pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled"])
    def test_an_ended_job(self, database: Database, away: Dispatcher, state: str) -> None:
        job_id = make_job(database)
        put(database, job_id, state=state)
        with pytest.raises(JobEndedError) as caught:
            cancel(database, away, job_id)
        assert caught.value.extra == {"state": state}

    def test_an_unknown_job(self, database: Database, away: Dispatcher) -> None:
        with pytest.raises(JobNotFoundError):
            cancel(database, away, "job-unknown")
