from sqlalchemy import select

from service.store.database import Database
from service.store.scheduling import registration
from service.store.tables.workers import WorkerRow
from tests.support.store.job_rows import WORKER


def all_rows(database: Database) -> list[WorkerRow]:
    with database.read() as session:
        return list(session.scalars(select(WorkerRow)))


class TestWorkers:
    def test_register_twice_is_one_row(self, database: Database) -> None:
        for _ in range(2):
            with database.write() as session:
                registration.register(session, WORKER)
        [row] = all_rows(database)
        assert row.packages is None
        assert (row.id, row.pid, row.queues, row.devices) == (
            "one@host",
            7,
            ["cpu", "gpu"],
            [{"type": "cpu", "name": "a CPU"}],
        )

    def test_seen_says_whether_the_row_is_there(self, database: Database) -> None:
        with database.write() as session:
            assert not registration.seen(session, WORKER.id)
            registration.register(session, WORKER)
            assert registration.seen(session, WORKER.id)
            registration.remove(session, WORKER.id)
            assert not registration.seen(session, WORKER.id)
