import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from sqlalchemy import select, update
from structlog.testing import capture_logs

from service.contract.routing import Message, MessageKind
from service.contract.search.spec import SearchSpec
from service.jobs.background_loop import BrokerUnreachableError
from service.jobs.dispatch import Dispatcher
from service.jobs.reconciler import Reconciler
from service.searches import commands
from service.settings import Settings
from service.store.database import Database, db_now
from service.store.jobs import endings
from service.store.scheduling import registration
from service.store.scope import EVERYTHING
from service.store.searches import state
from service.store.tables.interactive import PredictionRow, PreviewRow
from service.store.tables.jobs import JobRow
from service.store.tables.projects import DEFAULT_PROJECT
from service.store.tables.workers import WorkerRow
from service.store.tracking import removals
from service.store.tracking import searches as search_tracking
from tests.jobs.schema import schema_statements
from tests.searches.simulated_worker import search_spec
from tests.support.factories import claim_job, make_job
from tests.support.store.job_rows import WORKER, get, put
from tests.support.store.predictions import make_prediction
from tests.support.store.previews import make_preview


class Recorder(Dispatcher):
    """Takes every message, or none while `unreachable`."""

    def __init__(self) -> None:
        super().__init__(Settings(redis_url=None))
        self.sent: list[Message] = []
        self.asked = 0
        self.unreachable = False
        self.emptied = False

    def was_emptied(self) -> bool:
        emptied, self.emptied = self.emptied, False
        return emptied

    def enqueue(self, message: Message) -> bool:
        self.asked += 1
        if not self.unreachable:
            self.sent.append(message)
        return not self.unreachable


def of_job(job_id: str, priority: int) -> Message:
    return Message(MessageKind.JOB, job_id, "cpu", priority)


def refused(reconciler: Reconciler, recorder: Recorder, what: str) -> None:
    """The broker does not accept the message, which then waits."""
    recorder.unreachable = True
    with pytest.raises(BrokerUnreachableError, match=f"^1 messages wait, of {what}$"):
        reconciler.step()
    recorder.unreachable = False


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def reconciler(database: Database, recorder: Recorder) -> Reconciler:
    return Reconciler(database, recorder, Settings())


class TestStep:
    def test_sends_due_jobs_once(
        self, database: Database, reconciler: Reconciler, recorder: Recorder
    ) -> None:
        low, high = make_job(database, priority=7), make_job(database, priority=0)
        reconciler.step()
        reconciler.step()
        assert recorder.sent == [of_job(high, 0), of_job(low, 7)]

    def test_sends_again_when_no_worker_came(
        self, database: Database, reconciler: Reconciler, recorder: Recorder
    ) -> None:
        job_id = make_job(database)
        reconciler.step()
        row = get(database, job_id)
        assert (row.next_publish_at - row.queued_at).total_seconds() == pytest.approx(30, abs=1)
        put(database, job_id, next_publish_at=db_now(-1))
        reconciler.step()
        assert recorder.sent == [of_job(job_id, 5)] * 2

    def test_sends_all_again_that_the_broker_has_lost(
        self, database: Database, reconciler: Reconciler, recorder: Recorder
    ) -> None:
        waiting, backing_off, running = (make_job(database) for _ in range(3))
        reconciler.step()
        put(database, backing_off, not_before=db_now(60))
        claim_job(database, running)
        recorder.sent.clear()
        recorder.emptied = True
        reconciler.step()
        reconciler.step()
        assert recorder.sent == [of_job(waiting, 5)]

    def test_a_job_whose_message_was_not_sent_stays_due(
        self, database: Database, reconciler: Reconciler, recorder: Recorder
    ) -> None:
        job_id = make_job(database)
        recorder.unreachable = True
        with pytest.raises(BrokerUnreachableError):
            reconciler.step()
        recorder.unreachable = False
        reconciler.step()
        assert recorder.sent == [of_job(job_id, 5)]

    def test_the_first_that_the_broker_does_not_take_is_the_last_that_is_tried(
        self, database: Database, reconciler: Reconciler, recorder: Recorder
    ) -> None:
        for _ in range(3):
            make_job(database)
        recorder.unreachable = True
        with pytest.raises(BrokerUnreachableError, match=r"^3 messages wait, of jobs$"):
            reconciler.step()
        assert recorder.asked == 1

    def test_so_many_at_once(
        self,
        database: Database,
        reconciler: Reconciler,
        recorder: Recorder,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr("service.jobs.reconciler.BATCH", 2)
        lost = [make_job(database) for _ in range(3)]
        for job_id in lost:
            claim_job(database, job_id, lease_seconds=-1)
        reconciler.step()
        assert sorted(get(database, job_id).state for job_id in lost) == [
            "queued",
            "queued",
            "running",
        ]
        assert len(recorder.sent) == 2
        reconciler.step()
        assert sorted(message.id for message in recorder.sent) == sorted(lost)
        for job_id in lost:
            put(database, job_id, state="failed", ended_at=db_now(), tracking_retry_at=db_now(-1))
        reconciler.step()
        assert len(recorder.sent) == 5

    def test_only_a_lost_worker_is_reported(
        self, database: Database, reconciler: Reconciler, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another reconciler has ended the one job between the look-up and the write."""
        expired, ended = make_job(database), make_job(database)
        claim_job(database, expired, lease_seconds=-1)
        claim_job(database, ended)
        monkeypatch.setattr(endings, "expired", lambda _session, _limit: [ended, expired])
        with capture_logs() as logs:
            reconciler.step()
        assert [entry.get("job_id") for entry in warnings_of(logs)] == [expired]
        assert get(database, ended).state == "running"

    def test_an_expired_lease_is_ended_and_sent_even_without_broker(
        self, database: Database, reconciler: Reconciler, recorder: Recorder
    ) -> None:
        job_id = make_job(database)
        claim_job(database, job_id, lease_seconds=-1)
        recorder.unreachable = True
        with pytest.raises(BrokerUnreachableError):
            reconciler.step()
        assert (get(database, job_id).state, get(database, job_id).epoch) == ("queued", 2)
        recorder.unreachable = False
        reconciler.step()
        assert recorder.sent == [of_job(job_id, 5)]

    def test_enqueues_an_ended_job_until_its_run_is_complete(
        self, database: Database, reconciler: Reconciler, recorder: Recorder
    ) -> None:
        job_id = make_job(database)
        ended = {"state": "failed", "ended_at": db_now(), "tracking_retry_at": db_now(-1)}
        put(database, job_id, **ended)
        refused(reconciler, recorder, "ended jobs")
        reconciler.step()
        reconciler.step()
        assert recorder.sent == [of_job(job_id, 9)]
        put(database, job_id, tracking_retry_at=db_now(-1), tracking_final=True)
        reconciler.step()
        assert len(recorder.sent) == 1

    def test_enqueues_a_search_until_its_run_is_complete(
        self, database: Database, reconciler: Reconciler, recorder: Recorder
    ) -> None:
        spec = SearchSpec.model_validate(search_spec())
        search_id = commands.submit(database, DEFAULT_PROJECT, spec).search_id
        refused(reconciler, recorder, "searches")
        reconciler.step()
        reconciler.step()
        assert recorder.sent == [Message(MessageKind.SEARCH, search_id, "cpu", 9)]
        commands.cancel(database, EVERYTHING, search_id)
        reconciler.step()
        assert recorder.sent == [Message(MessageKind.SEARCH, search_id, "cpu", 9)] * 2
        with database.write() as session:
            version = state.get(session, EVERYTHING, search_id).version
            assert search_tracking.finish(session, search_id, version)
        reconciler.step()
        assert len(recorder.sent) == 2

    def test_enqueues_the_removal_of_a_runs_files_until_it_is_done(
        self, database: Database, reconciler: Reconciler, recorder: Recorder
    ) -> None:
        with database.write() as session:
            removals.schedule(session, "a1", is_final=True)
            removals.schedule(session, "b2", is_final=False)  # may still be sent files
            removals.schedule(session, None, is_final=True)
        refused(reconciler, recorder, "removals from MLflow")
        reconciler.step()
        reconciler.step()
        assert recorder.sent == [Message(MessageKind.MLFLOW_REMOVAL, "a1", "cpu", 9)]
        with database.write() as session:
            removal = removals.load(session, "a1")
            assert removal is not None
            removals.done(session, removal)
            removals.postpone(session, ["b2"], -1)
        reconciler.step()
        assert recorder.sent[1:] == [Message(MessageKind.MLFLOW_REMOVAL, "b2", "cpu", 9)]

    @pytest.mark.parametrize(
        ("what", "make", "row", "kind"),
        [
            ("previews", make_preview, PreviewRow, MessageKind.PREVIEW),
            ("predictions", make_prediction, PredictionRow, MessageKind.PREDICTION),
        ],
    )
    def test_sends_what_somebody_waits_for(
        self,
        database: Database,
        reconciler: Reconciler,
        recorder: Recorder,
        what: str,
        make: Callable[[Database], str],
        row: type[PreviewRow | PredictionRow],
        kind: MessageKind,
    ) -> None:
        asked = make(database)
        with database.write() as session:
            registration.register(session, WORKER)
            session.execute(update(row).values(next_publish_at=db_now(-1)))
        refused(reconciler, recorder, what)
        reconciler.step()
        reconciler.step()
        assert [(message.kind, message.id) for message in recorder.sent] == [(kind, asked)]
        with database.write() as session:
            session.execute(update(row).values(deadline_at=db_now(-1)))
        with capture_logs() as logs:
            reconciler.step()
        assert [entry["ids"] for entry in warnings_of(logs)] == [[asked]]
        with database.read() as session:
            assert session.scalars(select(row.state)).all() == ["failed"]

    def test_forgets_silent_workers(self, database: Database, reconciler: Reconciler) -> None:
        with database.write() as session:
            registration.register(session, WORKER)
        reconciler.step()
        with database.write() as session:
            assert session.scalar(select(WorkerRow.id)) == WORKER.id
            session.execute(update(WorkerRow).values(last_seen_at=db_now(-61)))
        with capture_logs() as logs:
            reconciler.step()
        assert [entry["worker"] for entry in warnings_of(logs)] == [WORKER.id]
        with database.read() as session:
            assert session.scalar(select(WorkerRow.id)) is None


class Rounds(threading.Event):
    """Stops `run` after so many steps, and records the wait before each."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.waits: list[float | None] = []
        self._count = count

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        return len(self.waits) > self._count


def warnings_of(logs: Any) -> list[Any]:
    return [entry for entry in logs if entry["log_level"] == "warning"]


def outage_ends(logs: Any) -> list[Any]:
    """The number of failures of each outage whose end was reported."""
    infos = [entry for entry in logs if entry["log_level"] == "info"]
    return [entry["failures"] for entry in infos if "failures" in entry]


class TestRun:
    @pytest.fixture
    def empty(self, tmp_path: Path) -> Iterator[Database]:
        """Without tables: every statement fails."""
        database = Database(f"sqlite:///{tmp_path / 'finetune.db'}")
        yield database
        database.dispose()

    def test_an_outage_of_the_database_slows_it_down(
        self, empty: Database, recorder: Recorder, sqlite_template: Path
    ) -> None:
        reconciler = Reconciler(empty, recorder, Settings())
        failing = Rounds(6)
        with capture_logs() as logs:
            reconciler.run(failing)
        assert failing.waits == [0.0, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
        assert [entry["retry_in"] for entry in logs] == failing.waits[1:]
        assert [entry["failures"] for entry in logs] == [1, 2, 3, 4, 5, 6]
        assert {entry["error"][:14] for entry in logs} == {"no such table:"}  # nor the statement
        fill(empty, sqlite_template)
        job_id = make_job(empty)
        working = Rounds(3)
        with capture_logs() as logs:
            reconciler.run(working)
        assert working.waits == [0.0, 1.0, 1.0, 1.0]
        assert outage_ends(logs) == [6]
        assert recorder.sent == [of_job(job_id, 5)]

    def test_an_outage_of_the_broker_slows_it_down(
        self, database: Database, recorder: Recorder
    ) -> None:
        recorder.unreachable = True
        reconciler = Reconciler(database, recorder, Settings())
        job_id = make_job(database)
        failing, working = Rounds(6), Rounds(2)
        with capture_logs() as logs:
            reconciler.run(failing)
        assert failing.waits == [0.0, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
        assert [entry["failures"] for entry in logs] == [1, 2, 3, 4, 5, 6]
        recorder.unreachable = False
        with capture_logs() as logs:
            reconciler.run(working)
        assert working.waits == [0.0, 1.0, 1.0]
        assert outage_ends(logs) == [6]
        assert recorder.sent == [of_job(job_id, 5)]

    def test_each_outage_is_counted_anew(
        self, empty: Database, recorder: Recorder, sqlite_template: Path
    ) -> None:
        """First the database, then the broker, then the broker again."""
        reconciler = Reconciler(empty, recorder, Settings())
        reconciler.run(Rounds(3))
        fill(empty, sqlite_template)
        make_job(empty)
        for ended in ([3], []):
            recorder.unreachable = True
            failing = Rounds(2)
            with capture_logs() as logs:
                reconciler.run(failing)
            assert failing.waits == [0.0, 1.0, 2.0]
            assert outage_ends(logs) == ended
            recorder.unreachable = False
            with capture_logs() as logs:
                reconciler.run(Rounds(1))
            assert outage_ends(logs) == [2]
            with empty.write() as session:
                session.execute(update(JobRow).values(next_publish_at=db_now(-1)))

    def test_a_broker_that_lost_everything_gets_the_message_again(
        self, database: Database, broker_url: str
    ) -> None:
        dispatcher = Dispatcher(Settings(redis_url=broker_url))
        client = redis.Redis.from_url(broker_url)
        client.flushall()
        reconciler = Reconciler(database, dispatcher, Settings())
        job_id = make_job(database)
        reconciler.step()
        assert client.llen("cpu:5") == 1
        client.flushall()
        put(database, job_id, next_publish_at=db_now(-1))
        reconciler.step()
        assert client.llen("cpu:5") == 1
        dispatcher.close()
        client.close()


def fill(database: Database, template: Path) -> None:
    """Build the schema in an empty database."""
    with database.engine.begin() as connection:
        for statement in schema_statements(template):
            connection.exec_driver_sql(statement)
