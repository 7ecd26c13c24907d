"""Claims on deliveries: leases with epochs, whose turn it is, and what is kept."""

from pathlib import Path

import pytest
from sqlalchemy import func, select, update

from service.settings import Settings
from service.store.database import Database, db_now
from service.store.jobs import state
from service.store.tables.webhooks import DeliveryRow
from service.store.webhooks import deliveries
from service.store.webhooks.deliveries import Claimed, Lane, Outcome, Room
from tests.support.factories import make_job, make_spec
from tests.support.servers.webhooks import endpoint

ROOM = Room(32, 8, 16)


@pytest.fixture
def webhook(database: Database, tmp_path: Path) -> str:
    settings = Settings(home=tmp_path / "home")
    return endpoint(database, settings, "https://example.com/", events=("job.submitted",))[0]


def claim(database: Database, room: Room = ROOM) -> list[Claimed]:
    with database.write() as session:
        return deliveries.claim(session, room)


class TestClaims:
    def test_an_event_is_claimed_once(self, database: Database, webhook: str) -> None:
        job_id = make_job(database)
        [claimed] = claim(database)
        assert (claimed.webhook_id, claimed.event_type) == (webhook, "job.submitted")
        assert claimed.payload["data"]["id"] == job_id
        assert claim(database) == []

    def test_a_lease_that_has_ended_is_taken_over_and_the_late_outcome_dropped(
        self, database: Database, webhook: str
    ) -> None:
        make_job(database)
        [first] = claim(database)
        with database.write() as session:
            session.execute(update(DeliveryRow).values(due_at=db_now(-1)))
        [second] = claim(database)
        assert (first.id, first.epoch + 1) == (second.id, second.epoch)
        with database.write() as session:
            assert deliveries.settle(session, Outcome(first, error="late"), 0.5) is None
            assert deliveries.settle(session, Outcome(second, status=200), 0.5) == "delivered"
            assert deliveries.settle(session, Outcome(second, status=200), 0.5) is None

    def test_no_more_of_a_lane_than_there_is_room_for(
        self, database: Database, webhook: str
    ) -> None:
        for _ in range(12):
            make_job(database)
        assert len(claim(database, Room(32, 8, 16, {Lane(webhook, "default"): 5}))) == 3

    @pytest.mark.parametrize(("asked", "least", "most"), [(600.0, 595, 600), (1e9, 28795, 28800)])
    def test_a_receiver_waits_as_long_as_it_asked_for(
        self, database: Database, webhook: str, asked: float, least: float, most: float
    ) -> None:
        make_job(database)
        [claimed] = claim(database)
        with database.write() as session:
            failed = Outcome(claimed, status=503, error="busy", retry_after=asked)
            assert deliveries.settle(session, failed, 0.5) == "pending"
        with database.read() as session:
            row = session.get_one(DeliveryRow, claimed.id)
            now = session.execute(select(db_now())).scalar_one()
            assert least < (row.due_at - now).total_seconds() <= most

    def test_receivers_in_specs_wait_by_their_hosts(self, database: Database) -> None:
        urls = ("https://a.org/x", "https://A.org?y", "https://a.org:8443/x", "https://b.org/")
        given = [{"url": url, "secret": "ci", "events": ["job.submitted"]} for url in urls]
        make_job(database, webhooks=given[:3])
        make_job(database, webhooks=given[3:])
        found = {one.url: one.lane for one in claim(database)}
        assert found[urls[0]] == found[urls[1]]
        assert len(set(found.values())) == 3
        assert max(map(len, found.values())) <= 48

    def test_a_change_that_is_rolled_back_sends_nothing(
        self, database: Database, webhook: str
    ) -> None:
        with database.write() as session:
            state.insert(session, state.new_job_id(), make_spec())
            session.rollback()
        with database.read() as session:
            assert not deliveries.is_due(session)


class TestShares:
    def test_they_go_to_the_project_with_the_fewest_on_their_way(self) -> None:
        first, second, other = Lane("a1", "a"), Lane("a2", "a"), Lane("b1", "b")
        room = Room(6, 8, 16, {first: 2})
        assert deliveries.shares([first, second, other], room) == {"b1": 3, "a2": 1}

    def test_dead_receivers_leave_room_for_the_others_of_their_project(self) -> None:
        dead = [Lane(f"dead{number}", "a") for number in range(20)]
        room = Room(32, 8, 16, {}, {lane.name for lane in dead})
        granted = deliveries.shares([*dead, Lane("live", "a")], room)
        assert granted.pop("live") == 8
        assert granted == {lane.name: 1 for lane in dead[:8]}

    def test_dead_receivers_of_many_projects_leave_half_of_the_room(self) -> None:
        dead = [Lane(f"dead{number}", str(number)) for number in range(40)]
        room = Room(32, 8, 16, {}, {lane.name for lane in dead})
        granted = deliveries.shares([*dead, Lane("live", "live")], room)
        assert granted.pop("live") == 8
        assert granted.total() == 16


def test_old_ones_and_those_beyond_the_newest_are_forgotten(
    database: Database, webhook: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.contract.webhooks.MOST_KEPT", 3)
    for _ in range(6):
        make_job(database)
    with database.write() as session:
        ids = sorted(session.scalars(select(DeliveryRow.id)))
        ended = update(DeliveryRow).where(DeliveryRow.id.in_(ids[:5]))
        session.execute(ended.values(state="delivered", ended_at=db_now()))
        oldest = update(DeliveryRow).where(DeliveryRow.id == ids[4])
        session.execute(oldest.values(ended_at=db_now(-31 * 86400)))
        assert deliveries.forget(session) == 2
        assert session.scalar(select(func.count()).select_from(DeliveryRow)) == 4
