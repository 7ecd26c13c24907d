"""What previews and predictions have in common: a project has few, one worker answers each, and
none stays for ever."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import select

from service.contract.failures import Failure, FailureCode
from service.errors import ProjectArchivedError
from service.store.database import Database, db_now
from service.store.interactive import prediction_claims, predictions, preview_claims, previews
from service.store.interactive.leases import BriefLeases
from service.store.interactive.requests import BriefRequests
from service.store.scope import EVERYTHING, Scope
from tests.support.store.predictions import claim_prediction, make_prediction, put_prediction
from tests.support.store.previews import claim_preview, make_preview, put_preview
from tests.support.store.projects import limit, make_project
from tests.support.threads import at_once

FAILURE = Failure.from_code(FailureCode.INTERNAL, "no")


@dataclass(frozen=True)
class Kind:
    requests: BriefRequests[Any]
    leases: BriefLeases[Any]
    make: Callable[..., str]
    put: Callable[..., None]
    claim: Callable[[Database, str], Any]
    most: int
    too_slow: str

    def row(self, database: Database, row_id: str) -> Any:
        with database.read() as session:
            return session.get_one(self.requests.table, row_id)

    def claimed(self, database: Database, row_id: str) -> Any:
        found = self.claim(database, row_id)
        assert found is not None
        return found

    def recover(self, database: Database) -> list[str]:
        with database.read() as session:
            is_needed = self.leases.has_stuck(session)
        with database.write() as session:
            found = self.leases.recover(session)
        assert is_needed == bool(found)
        return found

    def due(self, database: Database) -> list[str]:
        with database.read() as session:
            return [each.id for each in self.leases.due(session, 10, alive_seconds=30)]


PREVIEWS = Kind(
    previews.REQUESTS,
    preview_claims.LEASES,
    make_preview,
    put_preview,
    claim_preview,
    most=4,
    too_slow="The preview did not end within 120 s",
)
PREDICTIONS = Kind(
    predictions.REQUESTS,
    prediction_claims.LEASES,
    make_prediction,
    put_prediction,
    claim_prediction,
    most=16,
    too_slow="The answer was not ready within 300 s",
)


@pytest.fixture(params=[PREVIEWS, PREDICTIONS], ids=["previews", "predictions"])
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


class TestRequests:
    def test_of_many_at_once_a_project_gets_few(self, database: Database, kind: Kind) -> None:
        raised = at_once(kind.most + 4, lambda: kind.make(database))
        assert [type(error) for error in raised] == [kind.requests.too_many] * 4
        kind.make(database, make_project(database, "other"))

    def test_an_archived_project_gets_none(self, database: Database, kind: Kind) -> None:
        limit(database, archived_at=db_now())
        with pytest.raises(ProjectArchivedError):
            kind.make(database)

    def test_are_read_in_their_project(self, sqlite_database: Database, kind: Kind) -> None:
        mine, requests = kind.make(sqlite_database), kind.requests
        with sqlite_database.read() as session:
            assert requests.get(session, Scope("default"), mine).id == mine
            assert requests.is_unfinished(session, EVERYTHING, mine)
            assert not requests.is_unfinished(session, Scope("other"), mine)
            with pytest.raises(requests.not_found):
                requests.get(session, Scope("other"), mine)

    def test_an_expired_one_is_not_found(self, database: Database, kind: Kind) -> None:
        mine, fresh = kind.make(database), kind.make(database)
        kind.put(database, mine, expires_at=db_now(-1))
        with database.read() as session, pytest.raises(kind.requests.not_found):
            kind.requests.get(session, EVERYTHING, mine)
        with database.write() as session:
            assert kind.leases.forget(session) == 1
        with database.read() as session:
            assert session.scalars(select(kind.requests.table.id)).all() == [fresh]


class TestLeases:
    def test_of_many_workers_one_has_it(self, database: Database, kind: Kind) -> None:
        mine, taken = kind.make(database), list[Any]()
        assert at_once(8, lambda: taken.append(kind.claim(database, mine))) == []
        assert len([each for each in taken if each is not None]) == 1

    def test_a_failure_advises_nothing_that_needs_a_job(
        self, sqlite_database: Database, kind: Kind
    ) -> None:
        row_id = kind.make(sqlite_database)
        claimed = kind.claimed(sqlite_database, row_id)
        failure = Failure.from_code(FailureCode.INVALID_OPTION, "no")
        assert "finetune clone JOB" in failure.action
        with sqlite_database.write() as session:
            assert kind.leases.end(session, claimed, failure, None)
        stored = kind.row(sqlite_database, row_id).failure
        assert stored == kind.leases.advised(failure).model_dump(mode="json")
        assert "JOB" not in stored["action"]

    def test_a_stale_epoch_changes_nothing(self, sqlite_database: Database, kind: Kind) -> None:
        mine = kind.make(sqlite_database)
        stale = kind.claimed(sqlite_database, mine)
        kind.put(sqlite_database, mine, lease_until=db_now(-1))
        kind.recover(sqlite_database)
        assert kind.claimed(sqlite_database, mine).epoch == 2
        with sqlite_database.write() as session:
            assert not kind.leases.end(session, stale, FAILURE, None)
            assert not kind.leases.renew(session, stale, 60)
            assert not kind.leases.release(session, stale)
        assert kind.row(sqlite_database, mine).state == "running"

    def test_a_released_one_is_due_at_once(self, sqlite_database: Database, kind: Kind) -> None:
        mine = kind.make(sqlite_database)
        held = kind.claimed(sqlite_database, mine)
        with sqlite_database.write() as session:
            assert kind.leases.renew(session, held, 60)
            assert kind.leases.release(session, held)
        assert kind.due(sqlite_database) == [mine]

    def test_the_message_is_sent_again_until_a_worker_comes(
        self, database: Database, kind: Kind
    ) -> None:
        mine = kind.make(database)
        assert kind.due(database) == []  # the API sends the first
        kind.put(database, mine, next_publish_at=db_now(-1))
        assert kind.due(database) == [mine]
        with database.write() as session:
            kind.leases.mark_sent(session, [mine], again_in=30)
        assert kind.due(database) == []

    def test_a_lost_workers_goes_to_another_until_the_third(
        self, database: Database, kind: Kind
    ) -> None:
        mine, fine = kind.make(database), kind.make(database)
        kind.claimed(database, fine)
        for state in ("queued", "queued", "failed"):
            kind.claimed(database, mine)
            assert kind.recover(database) == []
            kind.put(database, mine, lease_until=db_now(-1))
            assert kind.recover(database) == [mine]
            assert kind.row(database, mine).state == state
            assert kind.due(database) == ([mine] if state == "queued" else [])
        row = kind.row(database, mine)
        assert (row.epoch, row.failure["code"]) == (3, "crash_limit")
        assert kind.row(database, fine).state == "running"

    def test_the_deadline_ends_it(self, database: Database, kind: Kind) -> None:
        queued, running = kind.make(database), kind.make(database)
        mine = kind.claimed(database, running)
        for each in (queued, running):
            kind.put(database, each, deadline_at=db_now(-1))
        assert kind.claim(database, queued) is None
        assert sorted(kind.recover(database)) == [queued, running]
        rows = [kind.row(database, each) for each in (queued, running)]
        ended = [(row.state, row.failure["code"]) for row in rows]
        assert ended == [("failed", "timeout")] * 2
        assert "No worker was free" in rows[0].failure["message"]
        assert kind.too_slow in rows[1].failure["message"]
        with database.write() as session:
            assert not kind.leases.end(session, mine, FAILURE, None)
