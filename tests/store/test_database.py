"""One statement needs no transaction of its own; what writes has one."""

from sqlalchemy import event, text

from service.store import keys
from service.store.database import Database


class TestConnect:
    def test_sends_the_statement_alone(self, database: Database) -> None:
        said: list[str] = []

        def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
            said.append(statement)

        event.listen(database.engine, "before_cursor_execute", note)
        with database.connect() as connection:
            assert keys.who(connection, "ft-none").is_open
            raw = connection.connection.dbapi_connection
            assert raw is not None
            if database.engine.dialect.name == "sqlite":
                assert not raw.in_transaction
            else:
                assert raw.autocommit
        assert len(said) == 1
        assert said[0].startswith("SELECT")

    def test_a_write_after_it_can_be_rolled_back(self, database: Database) -> None:
        """On the same connection of the pool."""
        with database.connect() as connection:
            connection.execute(text("SELECT 1"))
        try:
            with database.write() as session:
                keys.create(session, "mine")
                raise KeyError
        except KeyError:
            pass
        with database.connect() as connection:
            assert keys.who(connection, None).is_open
