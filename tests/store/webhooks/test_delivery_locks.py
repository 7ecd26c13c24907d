"""Transactions that lock the same deliveries and endpoints of Postgres, one in the middle of
another: they wait for each other in one order, so that none is ended by a deadlock."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import select, text, update

from service.errors import WebhookNotFoundError
from service.settings import Settings
from service.store.database import Database, db_now
from service.store.scope import EVERYTHING
from service.store.tables.webhooks import DeliveryRow
from service.store.webhooks import deliveries
from service.store.webhooks import endpoints as webhooks
from service.store.webhooks.deliveries import Claimed, Outcome, Room
from tests.support.servers.services import wait_until
from tests.support.servers.webhooks import endpoint
from tests.support.store.databases import on_postgres, waits_for_a_lock

pytestmark = on_postgres


def add_endpoint(database: Database, tmp_path: Path) -> str:
    settings = Settings(home=tmp_path / "home")
    return endpoint(database, settings, "https://example.com/", events=("job.failed",))[0]


def claimed(database: Database, *endpoints: str) -> list[Claimed]:
    """A delivery of each, in this order. The oldest is the last one on the disk."""
    with database.write() as session:
        ids = [webhooks.test(session, EVERYTHING, each).id for each in endpoints]
    with database.write() as session:
        found = {each.id: each for each in deliveries.claim(session, Room(32, 8, 16))}
    for each in reversed(ids):
        with database.write() as session:
            session.execute(update(DeliveryRow).where(DeliveryRow.id == each).values(tries=0))
    return [found[each] for each in ids]


def settle_with(
    database: Database, tries: list[Claimed], in_the_middle: Callable[[], None]
) -> None:
    """All tries failed; `in_the_middle` is called when the first one is written."""
    calls: list[None] = []

    def jitter() -> float:
        calls.append(None)
        if len(calls) == 2:
            in_the_middle()
        return 0.5

    with database.write() as session:
        deliveries.settle_all(session, [Outcome(each, error="refused") for each in tries], jitter)


@contextmanager
def started_in_the_middle(
    database: Database, do: Callable[[], object]
) -> Iterator[Callable[[], None]]:
    """What it gives runs `do` in a thread and returns when that waits for a lock. At the end `do`
    must have ended well."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            do()
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=run)

    def start() -> None:
        thread.start()
        wait_until(lambda: waits_for_a_lock(database) or raised, 10, "a lock")

    try:
        yield start
    finally:
        thread.join(10)
    assert raised == []


def test_an_endpoint_is_deleted_while_its_deliveries_are_settled(
    database: Database, tmp_path: Path
) -> None:
    webhook = add_endpoint(database, tmp_path)
    first, second = claimed(database, webhook, webhook)

    def remove() -> None:
        with database.write() as session:
            # Postgres may choose to read them as they are on the disk.
            session.execute(text("SET LOCAL enable_indexscan = off"))
            session.execute(text("SET LOCAL enable_bitmapscan = off"))
            webhooks.remove(session, EVERYTHING, webhook)

    with started_in_the_middle(database, remove) as start:
        settle_with(database, [second, first], start)
    with database.read() as session:
        assert list(session.scalars(select(DeliveryRow.id))) == []
        assert webhooks.list_all(session, EVERYTHING) == []


def test_of_two_that_delete_an_endpoint_the_second_finds_none(
    database: Database, tmp_path: Path
) -> None:
    webhook = add_endpoint(database, tmp_path)
    claimed(database, webhook)

    def remove() -> None:
        with database.write() as session, pytest.raises(WebhookNotFoundError):
            webhooks.remove(session, EVERYTHING, webhook)

    with started_in_the_middle(database, remove) as start, database.write() as session:
        webhooks.remove(session, EVERYTHING, webhook)
        start()


def test_two_senders_note_the_health_of_the_same_endpoints(
    database: Database, tmp_path: Path
) -> None:
    one, other = (add_endpoint(database, tmp_path) for _ in range(2))
    tries = claimed(database, one, other, one, other)

    def settle() -> None:
        settle_with(database, [tries[3], tries[2]], lambda: None)

    with started_in_the_middle(database, settle) as start:
        settle_with(database, tries[:2], start)
    with database.read() as session:
        rows = webhooks.list_all(session, EVERYTHING)
    assert all(row.failing_since is not None for row in rows)


def test_what_another_transaction_removes_is_not_waited_for(
    database: Database, tmp_path: Path
) -> None:
    webhook = add_endpoint(database, tmp_path)
    claimed(database, webhook, webhook)
    with database.write() as session:
        session.execute(update(DeliveryRow).values(state="failed", ended_at=db_now(-1e9)))
    with database.write() as removing:
        oldest = select(DeliveryRow.id).order_by(DeliveryRow.id).limit(1)
        removing.scalars(oldest.with_for_update()).one()
        with database.write() as session:
            session.execute(text("SET LOCAL lock_timeout = '5s'"))
            assert deliveries.forget(session) == 1
    with database.write() as session:
        assert deliveries.forget(session) == 1
