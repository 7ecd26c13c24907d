"""Engine and sessions for SQLite and Postgres, and the database's own clock."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self, TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    DateTime,
    Dialect,
    Engine,
    Select,
    create_engine,
    event,
    make_url,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.sql.visitors import InternalTraversal
from sqlalchemy.types import TypeDecorator

from service.store import wake_ups

SQLITE_BUSY_SECONDS = 30
Found = TypeVar("Found")


class UtcDateTime(TypeDecorator[datetime]):
    """An aware UTC datetime in Python; TIMESTAMPTZ on Postgres, UTC text on SQLite."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a naive datetime has no place in the database")
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, _dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class db_now(ColumnElement[datetime]):  # lower case: reads as the SQL function it is
    """The database's clock now, plus `offset` seconds. Machines' clocks differ; this one rules."""

    type = UtcDateTime()
    # What a compiled statement is found again by: there are few offsets, all from settings.
    inherit_cache = True
    _traverse_internals = [("offset", InternalTraversal.dp_plain_obj)]  # noqa: RUF012

    def __init__(self, offset: float = 0.0) -> None:
        self.offset = float(offset)


@compiles(db_now, "postgresql")
def _now_postgres(element: db_now, _compiler: Any, **_: Any) -> str:
    # clock_timestamp, not now(): a transaction that waited for a lock must see the time it is.
    return f"(clock_timestamp() + make_interval(secs => {element.offset!r}))"


@compiles(db_now, "sqlite")
def _now_sqlite(element: db_now, _compiler: Any, **_: Any) -> str:
    # Six digits, as SQLAlchemy writes them, so that text comparison is time comparison.
    return f"(strftime('%Y-%m-%d %H:%M:%f', 'now', '{element.offset:+.3f} seconds') || '000')"


def insert_or(session: Session, table: type[Any]) -> postgresql.Insert | sqlite.Insert:
    """An INSERT that can say what to do on a conflict: both databases do it in the same words."""
    if session.get_bind().dialect.name == "postgresql":
        return postgresql.insert(table)
    return sqlite.insert(table)


def page(session: Session, query: Select[Found], limit: int) -> tuple[list[Found], bool]:
    """Up to `limit` rows; and whether there are more."""
    rows = list(session.scalars(query.limit(limit + 1)))
    return rows[:limit], len(rows) > limit


def is_outage(error: BaseException) -> bool:
    """Whether the same statement can succeed later: the database is unreachable or too busy."""
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    return isinstance(error, OperationalError | InterfaceError | PoolTimeoutError)


def make_engine(url: str) -> Engine:
    """An engine; on SQLite with WAL, foreign keys and write transactions that lock at once."""
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        if parsed.database and parsed.database != ":memory:":
            Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
        engine = create_engine(url, connect_args={"timeout": SQLITE_BUSY_SECONDS})
        event.listen(engine, "connect", _configure_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    return create_engine(parsed, pool_pre_ping=True, pool_size=10, max_overflow=20)


def _configure_sqlite(connection: Any, _record: Any) -> None:
    # autocommit off in the driver's own sense: we issue BEGIN ourselves.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _begin_sqlite(connection: Any) -> None:
    options = connection.get_execution_options()
    if options.get("one_statement", False):
        return
    # A deferred transaction that reads first and then writes fails with SQLITE_BUSY at once when
    # another writer came between; IMMEDIATE waits its turn. Reads ask for the deferred kind.
    deferred = options.get("read_only", False)
    connection.exec_driver_sql("BEGIN" if deferred else "BEGIN IMMEDIATE")


class Database:
    """Sessions at the edges: `write` commits on success, `read` never writes. A context manager
    that closes its connections."""

    def __init__(self, url: str) -> None:
        self.engine = make_engine(url)
        self._write = sessionmaker(self.engine, expire_on_commit=False)
        self._read_only = self.engine.execution_options(read_only=True)
        self._read = sessionmaker(self._read_only, expire_on_commit=False)
        # On Postgres BEGIN and ROLLBACK would be two round trips more.
        is_sqlite = self.engine.dialect.name == "sqlite"
        alone = {"one_statement": True} if is_sqlite else {"isolation_level": "AUTOCOMMIT"}
        self._one_statement = self.engine.execution_options(**alone)
        self._caller = wake_ups.Caller(self._one_statement)
        self.before_commit: Callable[[Session], None] | None = None
        """Adds to each transaction that writes; the API has the audit log written here."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.dispose()

    @contextmanager
    def write(self, *, audited: bool = True) -> Iterator[Session]:
        """A transaction that commits at the end and rolls back on any exception.

        `audited`: False for a change that is not what the user has asked for.
        """
        with self._write.begin() as session:
            yield session
            if audited and self.before_commit is not None:
                self.before_commit(session)
        self._caller.after_commit(session)

    @contextmanager
    def read(self) -> Iterator[Session]:
        with self._read() as session:
            yield session

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """For statements that read, each for itself: without the ORM, and without a transaction,
        which would take two more round trips."""
        with self._one_statement.connect() as connection:
            yield connection

    def dispose(self) -> None:
        self.engine.dispose()
