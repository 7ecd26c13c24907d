"""A single statement needs no transaction of its own; writes have one."""

import pytest
from sqlalchemy import text
from sqlalchemy.exc import (
    DBAPIError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    ProgrammingError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from service.store.database import Database, is_outage
from service.store.projects import keys
from tests.support.store.statements import sent


class TestConnect:
    def test_sends_the_statement_alone(self, database: Database) -> None:
        with sent(database) as statements, database.connect() as connection:
            assert keys.who(connection, "ft-none") is None
            raw = connection.connection.dbapi_connection
            assert raw is not None
            if database.engine.dialect.name == "sqlite":
                assert not raw.in_transaction
            else:
                assert raw.autocommit
        assert len(statements) == 1
        assert statements[0].startswith("SELECT")

    def test_a_write_after_it_can_be_rolled_back(self, database: Database) -> None:
        """On the same connection of the pool."""
        with database.connect() as connection:
            connection.execute(text("SELECT 1"))
        try:
            with database.write() as session:
                _, made = keys.create(session, "mine")
                raise KeyError
        except KeyError:
            pass
        with database.connect() as connection:
            assert keys.who(connection, made) is None


CAUSE = Exception("cause")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OperationalError("SELECT 1", None, CAUSE), True),
        (InterfaceError("SELECT 1", None, CAUSE), True),
        (PoolTimeoutError("the pool is empty"), True),
        (DBAPIError("SELECT 1", None, CAUSE, connection_invalidated=True), True),
        (DBAPIError("SELECT 1", None, CAUSE), False),
        (IntegrityError("INSERT", None, CAUSE), False),
        (ProgrammingError("SELECT", None, CAUSE), False),
        (TimeoutError("of something else"), False),
    ],
)
def test_an_outage_is_what_the_same_statement_can_survive(error: Exception, expected: bool) -> None:
    assert is_outage(error) is expected
