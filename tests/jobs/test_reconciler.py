import threading
from pathlib import Path

import pytest
import redis
from sqlalchemy import select, update

from service.jobs.dispatch import Dispatcher
from service.jobs.reconciler import BrokerAwayError, Reconciler
from service.settings import Settings
from service.store import workers
from service.store.database import Database, db_now
from service.store.models import WorkerRow
from tests.jobs.schema import schema_statements
from tests.support import services
from tests.support.factories import claim_job, make_job
from tests.support.job_rows import WORKER, get, put


class Recorder(Dispatcher):
    """Takes every message, or none while `away`."""

    def __init__(self) -> None:
        super().__init__(Settings(redis_url=None))
        self.sent: list[tuple[str, str, int]] = []
        self.away = False
        self.emptied = False

    def lost_all(self) -> bool:
        emptied, self.emptied = self.emptied, False
        return emptied

    def wake(self, job_id: str, queue: str, priority: int) -> bool:
        if not self.away:
            self.sent.append((job_id, queue, priority))
        return not self.away


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def reconciler(database: Database, recorder: Recorder) -> Reconciler:
    return Reconciler(database, recorder, Settings(reconcile_seconds=0.01))


class TestStep:
    def test_sends_what_is_due_once(
        self, database: Database, reconciler: Reconciler, recorder: Recorder
    ) -> None:
        low, high = make_job(database, priority=7), make_job(database, priority=0)
        reconciler.step()
        reconciler.step()
        assert recorder.sent == [(high, "cpu", 0), (low, "cpu", 7)]

    def test_sends_again_when_nobody_came(
        self, database: Database, reconciler: Reconciler, recorder: Recorder
    ) -> None:
        job_id = make_job(database)
        reconciler.step()
        row = get(database, job_id)
        assert (row.next_publish_at - row.queued_at).total_seconds() == pytest.approx(30, abs=1)
        put(database, job_id, next_publish_at=db_now(-1))
        reconciler.step()
        assert recorder.sent == [(job_id, "cpu", 5)] * 2

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
        assert recorder.sent == [(waiting, "cpu", 5)]

    def test_what_the_broker_did_not_take_stays_due(
        self, database: Database, reconciler: Reconciler, recorder: Recorder
    ) -> None:
        job_id = make_job(database)
        recorder.away = True
        with pytest.raises(BrokerAwayError):
            reconciler.step()
        recorder.away = False
        reconciler.step()
        assert recorder.sent == [(job_id, "cpu", 5)]

    def test_an_expired_lease_is_ended_and_sent_even_without_broker(
        self, database: Database, reconciler: Reconciler, recorder: Recorder
    ) -> None:
        job_id = make_job(database)
        claim_job(database, job_id, lease_seconds=-1)
        recorder.away = True
        with pytest.raises(BrokerAwayError):
            reconciler.step()
        assert (get(database, job_id).state, get(database, job_id).epoch) == ("queued", 2)
        recorder.away = False
        reconciler.step()
        assert recorder.sent == [(job_id, "cpu", 5)]

    def test_rings_for_an_ended_job_until_its_run_is_complete(
        self, database: Database, reconciler: Reconciler, recorder: Recorder
    ) -> None:
        job_id = make_job(database)
        ended = {"state": "failed", "ended_at": db_now(), "tracking_retry_at": db_now(-1)}
        put(database, job_id, **ended)
        reconciler.step()
        reconciler.step()
        assert recorder.sent == [(job_id, "cpu", 9)]
        put(database, job_id, tracking_retry_at=db_now(-1), tracking_final=True)
        reconciler.step()
        assert len(recorder.sent) == 1

    def test_forgets_silent_workers(self, database: Database, reconciler: Reconciler) -> None:
        with database.write() as session:
            workers.register(session, WORKER)
        reconciler.step()
        with database.write() as session:
            assert session.scalar(select(WorkerRow.id)) == WORKER.id
            session.execute(update(WorkerRow).values(last_seen_at=db_now(-61)))
        reconciler.step()
        with database.read() as session:
            assert session.scalar(select(WorkerRow.id)) is None


class TestRun:
    def test_survives_an_outage_of_the_database(
        self, tmp_path: Path, sqlite_template: Path
    ) -> None:
        path = tmp_path / "finetune.db"
        database = Database(f"sqlite:///{path}")  # empty: every statement fails
        recorder = Recorder()
        reconciler = Reconciler(database, recorder, Settings(reconcile_seconds=0.01))
        stop = threading.Event()
        thread = threading.Thread(target=reconciler.run, args=(stop,))
        thread.start()
        try:
            stop.wait(0.1)
            assert thread.is_alive()
            with database.engine.connect() as connection:
                for line in schema_statements(sqlite_template):
                    connection.exec_driver_sql(line)
                connection.commit()
            job_id = make_job(database)
            services.wait_until(lambda: recorder.sent, 10, "the message after the outage")
        finally:
            stop.set()
            thread.join(10)
        assert recorder.sent[0][0] == job_id
        database.dispose()

    def test_survives_an_outage_of_the_broker(self, database: Database) -> None:
        recorder = Recorder()
        recorder.away = True
        reconciler = Reconciler(database, recorder, Settings(reconcile_seconds=0.01))
        make_job(database)
        stop = threading.Event()
        thread = threading.Thread(target=reconciler.run, args=(stop,))
        thread.start()
        try:
            stop.wait(0.1)
            assert thread.is_alive()
            recorder.away = False
            services.wait_until(lambda: recorder.sent, 10, "the message after the outage")
        finally:
            stop.set()
            thread.join(10)

    def test_a_broker_that_lost_everything_gets_the_message_again(
        self, database: Database, broker_url: str
    ) -> None:
        dispatcher = Dispatcher(Settings(redis_url=broker_url))  # type: ignore[arg-type]
        client = redis.Redis.from_url(broker_url)
        client.flushall()
        reconciler = Reconciler(database, dispatcher, Settings(republish_seconds=0.2))
        make_job(database)
        reconciler.step()
        assert client.llen("cpu:5") == 1
        client.flushall()
        stop = threading.Event()
        stop.wait(0.3)
        reconciler.step()
        assert client.llen("cpu:5") == 1
        dispatcher.close()
        client.close()
