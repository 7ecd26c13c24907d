"""Previews, besides what test_brief_requests.py says of all requests of this kind."""

import threading
from typing import Any

from sqlalchemy import event, select

from service.contract.failures import Failure, FailureCode
from service.contract.interactive.previews import PreviewResult
from service.store.database import Database, db_now
from service.store.interactive import preview_claims, previews
from service.store.interactive.preview_claims import PreviewClaim
from service.store.scheduling import fleet
from service.store.scheduling.fleet import Fleet
from service.store.tables.files import RemovalRow
from service.store.tables.interactive import PreviewRow
from tests.support.factories import claim_job, make_job
from tests.support.store.databases import on_postgres
from tests.support.store.previews import (
    claim_preview,
    make_preview,
    preview,
    put_preview,
    register_worker,
)
from tests.support.store.projects import make_project

FAILURE = Failure.from_code(FailureCode.MISSING_COLUMN, "no column")


def end(database: Database, claimed: PreviewClaim, ended: PreviewResult | Failure) -> bool:
    with database.write() as session:
        return preview_claims.end(session, claimed, ended)


def claimed(database: Database, preview_id: str) -> PreviewClaim:
    found = claim_preview(database, preview_id)
    assert found is not None
    return found


def due(database: Database) -> list[str]:
    with database.read() as session:
        messages = preview_claims.LEASES.due(session, 10, alive_seconds=30)
    assert {message.queue for message in messages} <= {"cpu"}
    return [message.id for message in messages]


class TestInsert:
    def test_the_newest_twenty_are_kept(self, sqlite_database: Database) -> None:
        other = make_preview(sqlite_database, make_project(sqlite_database, "other"))
        made = []
        for _ in range(22):
            made.append(make_preview(sqlite_database))
            put_preview(sqlite_database, made[-1], state="failed")
        with sqlite_database.read() as session:
            kept = session.scalars(select(PreviewRow.id).order_by(PreviewRow.id)).all()
        assert kept == [other, *made[2:]]


class TestMessages:
    def test_of_each_project_one_is_urgent(self, database: Database) -> None:
        mine = [make_preview(database) for _ in range(3)]
        other = make_preview(database, make_project(database, "other"))

        def priorities() -> list[int]:
            with database.read() as session:
                found = previews.messages(session, [*mine, other], Fleet(()))
            return [each.priority for each in found]

        assert priorities() == [0, 9, 9, 0]
        put_preview(database, mine[0], state="running")
        assert priorities() == [0, 9, 9, 0]
        put_preview(database, mine[0], state="failed")
        assert priorities() == [9, 0, 9, 0]


class TestQueue:
    """Which workers a preview is for."""

    def queue(self, database: Database) -> str:
        with database.read() as session:
            return previews.queue_of(Fleet.read(session.connection(), 30))

    def test_those_of_jobs_while_one_is_free(self, sqlite_database: Database) -> None:
        assert self.queue(sqlite_database) == "cpu"
        register_worker(sqlite_database, "one")
        register_worker(sqlite_database, "two", "preview")
        assert self.queue(sqlite_database) == "cpu"
        claim_job(sqlite_database, make_job(sqlite_database), "one")
        assert self.queue(sqlite_database) == "preview"
        register_worker(sqlite_database, "three")
        assert self.queue(sqlite_database) == "cpu"

    def test_another_preview_makes_one_busy(self, sqlite_database: Database) -> None:
        register_worker(sqlite_database, "one")
        register_worker(sqlite_database, "two", "preview")
        claim_preview(sqlite_database, make_preview(sqlite_database), "one")
        assert self.queue(sqlite_database) == "preview"
        claim_preview(sqlite_database, make_preview(sqlite_database), "two")
        assert self.queue(sqlite_database) == "preview"

    def test_without_any_for_previews_alone_it_waits_for_the_others(
        self, sqlite_database: Database
    ) -> None:
        register_worker(sqlite_database, "one")
        claim_job(sqlite_database, make_job(sqlite_database), "one")
        register_worker(sqlite_database, "gpu", "gpu")
        assert self.queue(sqlite_database) == "cpu"

    def test_a_message_that_is_sent_again_goes_to_those_that_are_free_by_then(
        self, database: Database
    ) -> None:
        register_worker(database, "one")
        register_worker(database, "two", "preview")
        mine = make_preview(database)
        put_preview(database, mine, next_publish_at=db_now(-1))
        claim_job(database, make_job(database), "one")
        with database.read() as session:
            (message,) = preview_claims.LEASES.due(session, 10, alive_seconds=30)
        assert (message.id, message.queue, message.priority) == (mine, "preview", 0)


class TestClaim:
    def test_one_worker_gets_it(self, database: Database) -> None:
        mine = make_preview(database, name="seen")
        found = claimed(database, mine)
        assert (found.id, found.epoch, found.as_job.spec.name) == (mine, 1, "seen")
        assert (found.as_job.project_id, found.as_job.stage) == ("default", "prepare")
        assert (found.options.rows, found.options.shown) == (100, 3)
        assert 100 < found.seconds_left <= 120
        assert claim_preview(database, mine) is None
        assert preview(database, mine).state == "running"

    def test_its_folder_is_to_be_removed_whatever_happens(self, database: Database) -> None:
        def planned() -> list[str]:
            with database.read() as session:
                later = select(RemovalRow.path).where(RemovalRow.created_at > db_now(500))
                return list(session.scalars(later))

        found = claimed(database, make_preview(database))
        assert planned() == [f"jobs/{found.id}"]
        with database.write() as session:
            preview_claims.forget_folder(session, found)
        assert planned() == []


class TestEnd:
    def test_the_result_and_how_a_job_would_fail(self, database: Database) -> None:
        mine = make_preview(database)
        result = PreviewResult(rows_limit=3, unknown_tokens=float("nan"), failure=FAILURE)
        assert end(database, claimed(database, mine), result)
        row = preview(database, mine)
        assert (row.state, row.lease_until) == ("failed", None)
        assert row.failure is not None
        assert row.failure["code"] == "missing_column"
        assert row.result is not None
        assert (row.result["rows_limit"], row.result["unknown_tokens"]) == (3, "nan")
        assert "failure" not in row.result

    def test_without_a_failure_it_has_succeeded(self, sqlite_database: Database) -> None:
        mine = make_preview(sqlite_database)
        assert end(sqlite_database, claimed(sqlite_database, mine), PreviewResult(rows_limit=3))
        row = preview(sqlite_database, mine)
        assert (row.state, row.failure, row.ended_at is not None) == ("succeeded", None, True)

    def test_the_next_of_the_project_is_sent_at_once(self, database: Database) -> None:
        first, second, third = (make_preview(database) for _ in range(3))
        other = make_preview(database, make_project(database, "other"))
        assert end(database, claimed(database, first), FAILURE)
        assert due(database) == [second]
        assert end(database, claimed(database, third), FAILURE)
        assert due(database) == [second]
        assert end(database, claimed(database, second), FAILURE)
        assert due(database) == []
        assert preview(database, other).state == "queued"

    @on_postgres
    def test_a_next_one_that_is_being_changed_is_not_waited_for(self, database: Database) -> None:
        """Who holds it may be waiting for the one that ends."""
        first, second = make_preview(database), make_preview(database)
        held = claimed(database, first)
        with database.write() as session:
            session.get_one(PreviewRow, second, with_for_update=True)
            ending = threading.Thread(target=end, args=(database, held, FAILURE), daemon=True)
            ending.start()
            ending.join(10)
            assert not ending.is_alive()
        assert preview(database, first).state == "failed"

    def test_what_a_database_does_not_take_as_it_is(self, database: Database) -> None:
        mine = make_preview(database)
        odd = "\x00\u2028\U0001f600"
        result = PreviewResult(rows_limit=3, notices=[odd])
        assert end(database, claimed(database, mine), result)
        found = preview(database, mine).result
        assert found is not None
        assert found["notices"] == [odd]


def test_what_is_asked_every_second_reads_no_ended_one(sqlite_database: Database) -> None:
    """Their rows are large."""
    asked: list[tuple[str, Any]] = []
    engine = sqlite_database.engine
    event.listen(engine, "before_cursor_execute", lambda *call: asked.append((call[2], call[3])))
    with sqlite_database.read() as session:
        preview_claims.LEASES.has_stuck(session)
        preview_claims.LEASES.due(session, 10, alive_seconds=30)
        previews.messages(session, [], Fleet(()))
        session.execute(fleet._HELD)
    queries = [(query, values) for query, values in asked if "FROM previews" in query]
    assert len(queries) == 4
    with engine.connect() as connection:
        for query, values in queries:
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {query}", values).all()
            assert "ix_previews_state_id" in str(plan)
            assert "SCAN previews" not in str(plan)
