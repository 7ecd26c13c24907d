"""Senders that share one outbox in Postgres, where their claims really overlap."""

from contextlib import ExitStack
from pathlib import Path

from service.settings import Settings
from service.store.database import Database
from service.store.scope import EVERYTHING
from service.store.webhooks import endpoints
from tests.support.servers.webhooks import Receiver, endpoint, sending, wait_for
from tests.support.store.databases import on_postgres

pytestmark = on_postgres
_COUNT = 60


def test_four_senders_send_each_event_once(database: Database, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "home", webhook_allow=["127.0.0.1"])

    def states() -> list[str]:
        with database.read() as session:
            rows, _ = endpoints.deliveries(session, EVERYTHING, limit=1000)
            return [row.state for row in rows]

    with Receiver() as receiver, ExitStack() as senders:
        ids = [endpoint(database, settings, receiver.url)[0] for _ in range(4)]
        with database.write() as session:
            for place in range(_COUNT):
                endpoints.test(session, EVERYTHING, ids[place % 4])
        for _ in range(4):
            senders.enter_context(sending(database, settings))
        wait_for(lambda: states() == ["delivered"] * _COUNT, 30.0)
        received = receiver.ids()
    assert (len(received), len(set(received))) == (_COUNT, _COUNT)
