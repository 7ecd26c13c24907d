"""The health check of a worker's container."""

from datetime import timedelta

from service.settings import Settings
from service.store.database import Database
from service.store.scheduling import registration
from service.store.scheduling.registration import WorkerInfo
from service.store.tables.workers import WorkerRow
from worker.lifecycle.healthcheck import is_alive

SETTINGS = Settings(beat_seconds=10)


def register(database: Database, silent_for: float) -> None:
    info = WorkerInfo(
        id="w@a", hostname="a", pid=7, queues=["cpu"], devices=[{"type": "cpu"}], version="0"
    )
    with database.write() as session:
        registration.register(session, info)
        row = session.get_one(WorkerRow, "w@a")
        row.last_seen_at -= timedelta(seconds=silent_for)


class TestIsAlive:
    def test_a_worker_that_sends_heartbeats(self, database: Database) -> None:
        register(database, silent_for=25)
        assert is_alive(database, "a", SETTINGS)

    def test_a_worker_that_has_missed_three_heartbeats(self, database: Database) -> None:
        register(database, silent_for=35)
        assert not is_alive(database, "a", SETTINGS)

    def test_the_worker_of_another_host(self, database: Database) -> None:
        register(database, silent_for=0)
        assert not is_alive(database, "b", SETTINGS)
