import threading
from collections.abc import Callable

from service.store.database import Database
from service.store.projects import secrets
from service.store.scope import Scope
from tests.support.threads import at_once

DEFAULT = Scope("default")


def put(database: Database, value: str) -> None:
    put_sealed(database, "hub", lambda: value)


def put_sealed(database: Database, name: str, seal: Callable[[], str]) -> None:
    with database.write() as session:
        secrets.put(session, "default", name, seal)


def stored(database: Database) -> str | None:
    with database.read() as session:
        return secrets.sealed(session, DEFAULT, "hub")


class TestPut:
    def test_the_first_value_is_given_by_many_at_once(self, database: Database) -> None:
        assert at_once(8, lambda: put(database, "sealed")) == []
        assert stored(database) == "sealed"

    def test_a_second_value_replaces_the_first(self, database: Database) -> None:
        put(database, "first")
        with database.read() as session:
            [first] = secrets.list_all(session, DEFAULT)
        put(database, "second")
        with database.read() as session:
            [second] = secrets.list_all(session, DEFAULT)
        assert (first.sealed, second.sealed) == ("first", "second")
        assert second.created_at == first.created_at < second.updated_at


class TestSealAgain:
    def test_a_secret_that_is_set_meanwhile_waits(self, database: Database) -> None:
        """Sealed with the old key, it could never be opened again."""
        put(database, "old key")
        keys = ["old key"]
        late = threading.Thread(target=lambda: put_sealed(database, "late", lambda: keys[-1]))
        with database.write() as session:
            assert secrets.seal_again(session, lambda *_: "new key") == 1
            late.start()
            late.join(0.3)
            keys.append("new key")
        late.join()
        with database.read() as session:
            found = {row.name: row.sealed for row in secrets.list_all(session, DEFAULT)}
        assert found == {"hub": "new key", "late": "new key"}
