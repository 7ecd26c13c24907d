"""On Postgres a commit wakes the streams of other processes; without that they read each tick."""

import time
from collections.abc import Iterator

import pytest
from sqlalchemy import text

from service.api.live import feed
from service.store.database import Database
from service.store.jobs import wake_ups
from service.store.tables.jobs import JobRow
from tests.api.conftest import Server
from tests.api.factories import add_job
from tests.support.live_streams import Message, append, stream
from tests.support.servers.services import wait_until
from tests.support.store.databases import on_postgres

pytestmark = on_postgres
_LISTENERS = text("SELECT pid FROM pg_stat_activity WHERE query = :query AND datname = :name")


def listeners(database: Database) -> list[int]:
    given = {"query": f"LISTEN {wake_ups.CHANNEL}", "name": database.engine.url.database}
    with database.read() as session:
        return list(session.scalars(_LISTENERS, given))


def seconds_until_each(found: Iterator[Message], database: Database, job_id: str) -> list[float]:
    taken = []
    for number in range(5):
        began = time.monotonic()
        append(database, job_id, number)
        assert next(found)["id"] == str(number + 1)
        taken.append(time.monotonic() - began)
    return taken


@pytest.fixture
def slow_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "TICK_SECONDS", 5.0)


@pytest.mark.usefixtures("slow_ticks")
class TestListener:
    def test_events_arrive_long_before_the_tick(self, server: Server) -> None:
        job_id = add_job(server.database)
        with stream(server.client, f"/v1/jobs/{job_id}/events/stream") as found:
            assert [next(found).get("event") for _ in range(2)] == [None, "progress"]
            wait_until(lambda: len(listeners(server.database)) == 1, 5, "the listener")
            taken = seconds_until_each(found, server.database, job_id)
        assert max(taken) < 2.5
        wait_until(lambda: not listeners(server.database), 5, "the listener's end")

    def test_a_listener_that_was_cut_off_connects_again(self, server: Server) -> None:
        job_id = add_job(server.database)
        with stream(server.client, f"/v1/jobs/{job_id}/events/stream") as found:
            assert [next(found).get("event") for _ in range(2)] == [None, "progress"]
            wait_until(lambda: len(listeners(server.database)) == 1, 5, "the listener")
            (pid,) = listeners(server.database)
            with server.database.read() as session:
                session.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
            append(server.database, job_id, 0)  # no listener hears of it
            assert next(found)["id"] == "1"
            wait_until(lambda: len(listeners(server.database)) == 1, 5, "a new listener")
            began = time.monotonic()
            append(server.database, job_id, 1)
            assert next(found)["id"] == "2"
            assert time.monotonic() - began < 2.5


class TestCaller:
    @staticmethod
    def heard(database: Database, writes: int) -> int:
        """How many calls arrive of so many transactions at once."""
        job_id = add_job(database)
        raw = database.engine.raw_connection()
        try:
            connection = raw.driver_connection
            assert connection is not None
            connection.autocommit = True
            connection.execute(f"LISTEN {wake_ups.CHANNEL}")
            for number in range(writes):
                append(database, job_id, number)
            return len(list(connection.notifies(timeout=0.3)))
        finally:
            raw.invalidate()

    def test_a_burst_is_one_call(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(wake_ups, "SPACING_SECONDS", 60.0)
        assert self.heard(database, 20) == 1

    def test_what_adds_no_event_wakes_no_stream(self, database: Database) -> None:
        job_id = add_job(database)
        time.sleep(wake_ups.SPACING_SECONDS)
        with database.write() as session:
            session.get_one(JobRow, job_id).progress = {"step": 1}
            assert not session.info
        assert self.heard(database, 1) == 1
