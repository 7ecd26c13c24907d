import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import func, select

from service.contract.spec import JobSpec
from service.contract.states import JobState
from service.errors import (
    DataGoneError,
    DomainError,
    IdempotencyInFlightError,
    IdempotencyKeyReusedError,
    JobEndedError,
    JobNotFoundError,
    UploadInUseError,
    WrongStateError,
)
from service.jobs.commands import Submitted, cancel, delete, pause, retry, submit
from service.jobs.dispatch import Dispatcher
from service.settings import Settings
from service.store import claims, files, idempotency, jobs
from service.store.database import Database, db_now
from service.store.models import EventRow, JobRow
from tests.factories import claim_job, make_job, make_spec
from tests.store.test_jobs import get, put


@pytest.fixture
def away() -> Dispatcher:
    """No broker is configured: as if it were always away."""
    return Dispatcher(Settings(redis_url=None))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home")


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

    def test_a_sent_message_is_not_sent_again_at_once(
        self, database: Database, broker_url: str
    ) -> None:
        rung = []

        class Answering(Dispatcher):
            def wake(self, job_id: str, queue: str, priority: int) -> bool:
                # After commit: whoever is rung finds the job.
                rung.append((get(database, job_id).state, queue, priority))
                return True

        dispatcher = Answering(Settings(redis_url=broker_url))  # type: ignore[arg-type]
        job_id = submit(database, dispatcher, make_spec(priority=3)).job_id
        dispatcher.close()
        assert rung == [("queued", "cpu", 3)]
        with database.read() as session:
            assert jobs.due(session, 10) == []
        row = get(database, job_id)
        assert (row.next_publish_at - row.queued_at).total_seconds() == 5

    def test_more_than_can_be_rung_for_are_left_to_the_reconciler(
        self, database: Database, broker_url: str
    ) -> None:
        rung, may_ring = [], threading.Event()

        class Slow(Dispatcher):
            def wake(self, job_id: str, queue: str, priority: int) -> bool:
                may_ring.wait(30)
                rung.append(job_id)
                return True

        dispatcher = Slow(Settings(redis_url=broker_url))  # type: ignore[arg-type]
        made = [submit(database, dispatcher, make_spec()).job_id for _ in range(80)]
        may_ring.set()
        dispatcher.close()
        # The one in hand and a backlog of 64; all are in the table, and due soon.
        assert rung in (made[:64], made[:65])


class TestIdempotency:
    def test_same_key_and_request_is_the_same_job(
        self, database: Database, away: Dispatcher
    ) -> None:
        first = submit(database, away, make_spec(), idempotency_key="k", request_sha256="a")
        second = submit(database, away, make_spec(), idempotency_key="k", request_sha256="a")
        assert second == Submitted(first.job_id)
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


class TestUploads:
    """A file that a job names is there for as long as the job is not over."""

    def file(self, database: Database) -> str:
        file_id = files.new_id()
        with database.write() as session:
            files.add(
                session, file_id=file_id, filename="a", purpose="fine-tune", size=1, sha256="0"
            )
        return file_id

    def spec_of(self, *ids: str) -> JobSpec:
        return make_spec(dataset={"source": "upload", "train": list(ids)})

    def test_a_file_that_went_after_the_examination(
        self, database: Database, away: Dispatcher
    ) -> None:
        there, gone = self.file(database), files.new_id()
        with pytest.raises(DataGoneError) as caught:
            submit(database, away, self.spec_of(there, gone), idempotency_key="k")
        assert caught.value.extra == {"missing": [gone]}
        assert count(database) == 0

    def test_the_first_of_a_new_job_and_a_removal_decides(
        self, database: Database, away: Dispatcher
    ) -> None:
        kept, removed = self.file(database), self.file(database)
        errors: list[DomainError] = []

        def attempt(action: Callable[[], object]) -> None:
            try:
                action()
            except DomainError as error:
                errors.append(error)

        def remove_kept() -> None:
            with database.write() as session:
                files.remove(session, kept)

        with database.write() as session:
            files.use(session, [kept])
            jobs.insert(session, jobs.new_job_id(), self.spec_of(kept))
            late = threading.Thread(target=attempt, args=(remove_kept,))
            late.start()
            late.join(0.3)
            assert late.is_alive()
        late.join(10)
        with database.write() as session:
            files.remove(session, removed)
            late = threading.Thread(
                target=attempt, args=(lambda: submit(database, away, self.spec_of(removed)),)
            )
            late.start()
            late.join(0.3)
            assert late.is_alive()
        late.join(10)
        assert [type(error) for error in errors] == [UploadInUseError, DataGoneError]
        assert count(database) == 1


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


class TestRaces:
    """Whoever comes second sees what the first has done, and hears so."""

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
        self, database: Database, away: Dispatcher, settings: Settings
    ) -> None:
        job_id = self.failed(database)
        outcomes = self.at_once(*[partial(retry, database, away, settings, job_id)] * 6)
        assert outcomes.count(JobState.QUEUED) == 1
        assert outcomes.count(WrongStateError) == 5
        with database.read() as session:
            types = session.scalars(select(EventRow.type).where(EventRow.job_id == job_id)).all()
        assert types.count("retried") == 1

    def test_a_retry_and_a_deletion(
        self, database: Database, away: Dispatcher, settings: Settings
    ) -> None:
        for _ in range(8):
            job_id = self.failed(database)
            workspace = settings.workspace(job_id)
            workspace.mkdir(parents=True)
            outcomes = self.at_once(
                partial(retry, database, away, settings, job_id),
                partial(delete, database, settings, job_id),
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
                        session, job_id, "w", queues=["cpu"], gpus=0, lease_seconds=60
                    )

            paused, claimed = self.at_once(partial(pause, database, job_id), claim)
            assert paused == get(database, job_id).state
            assert paused == (JobState.PAUSED if claimed is None else JobState.PAUSING)
