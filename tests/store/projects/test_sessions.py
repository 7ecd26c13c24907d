"""Sessions of browsers, on both databases."""

import pytest
from sqlalchemy import delete, select, update

from service.store.database import Database, db_now
from service.store.projects import keys, sessions
from service.store.projects.keys import Holder
from service.store.tables.projects import ApiKeyRow, SessionRow


def key_of(database: Database) -> str:
    with database.write() as session:
        return keys.create(session, "me")[0].id


def begin(database: Database, key_id: str) -> str:
    with database.write() as session:
        return sessions.begin(session, key_id)[1]


def holder(database: Database, token: str) -> Holder | None:
    with database.connect() as connection:
        return keys.who_in_session(connection, token)


def count(database: Database) -> int:
    with database.read() as session:
        return len(session.scalars(select(SessionRow)).all())


class TestSessions:
    def test_belong_to_a_key_until_they_end(self, database: Database) -> None:
        key_id = key_of(database)
        first, second = begin(database, key_id), begin(database, key_id)
        found = holder(database, first)
        assert found is not None
        assert (found.key_id, found.key_name) == (key_id, "me")
        with database.write() as session:
            ended = sessions.end(session, first)
        assert ended is not None
        assert ended[1] == found
        assert holder(database, first) is None
        assert holder(database, second) is not None
        with database.write() as session:
            assert sessions.end(session, first) is None

    def test_one_that_has_expired_has_no_holder(self, database: Database) -> None:
        token = begin(database, key_of(database))
        with database.write() as session:
            session.execute(update(SessionRow).values(expires_at=db_now(-1)))
        assert holder(database, token) is None
        with database.write() as session:
            ended = sessions.end(session, token)
        assert ended is not None
        assert ended[1] is None

    def test_the_oldest_of_a_key_give_way(
        self, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sessions, "MOST_OF_A_KEY", 3)
        mine, other = key_of(database), key_of(database)
        theirs = begin(database, other)
        tokens = [begin(database, mine) for _ in range(5)]
        assert [holder(database, token) is not None for token in tokens] == [False] * 2 + [True] * 3
        assert holder(database, theirs) is not None
        assert count(database) == 4

    def test_end_with_the_row_of_their_key(self, database: Database) -> None:
        begin(database, key_of(database))
        with database.write() as session:
            session.execute(delete(ApiKeyRow))
        assert count(database) == 0
