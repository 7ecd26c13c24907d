"""Engine and sessions for SQLite and Postgres, and the database's own clock."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from sqlalchemy import (
    URL,
    ColumnElement,
    Connection,
    Engine,
    Select,
    create_engine,
    event,
    make_url,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.sql.visitors import InternalTraversal

from service.store.tables.base import UtcDateTime

SQLITE_BUSY_SECONDS = 30
Found = TypeVar("Found")
_AFTER_COMMIT: Final = "after_commit"


class db_now(ColumnElement[datetime]):  # lower case: reads as the SQL function it is
    """The database's clock now, plus `offset` seconds. Machines' clocks differ; this one rules."""

    type = UtcDateTime()
    # The key of a compiled statement in the cache: there are few offsets, all from settings.
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


_CLOCK: Final = select(db_now())


def clock(session: Session) -> datetime:
    """The database's time, now and not at the transaction's start."""
    # Without the ORM, which takes longer than the statement.
    return session.connection().execute(_CLOCK).scalar_one()


def jsonable(value: Any) -> Any:
    """JSON has no NaN and Postgres takes none: such a float becomes a string that float() reads."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: jsonable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [jsonable(item) for item in value]
    return value


def insert_or(session: Session, table: type[Any]) -> postgresql.Insert | sqlite.Insert:
    """An INSERT that can say what to do on a conflict; the syntax is the same in both databases."""
    if session.get_bind().dialect.name == "postgresql":
        return postgresql.insert(table)
    return sqlite.insert(table)


def page(session: Session, query: Select[Found], limit: int) -> tuple[list[Found], bool]:
    """Up to `limit` rows; and whether there are more."""
    rows = list(session.scalars(query.limit(limit + 1)))
    return rows[:limit], len(rows) > limit


def after_commit(session: Session, hook: Callable[[Engine], None]) -> None:
    """Call `hook` once when the transaction of `Database.write` has committed, however often it is
    registered. It gets an engine whose statements are each a transaction, and must not fail."""
    session.info.setdefault(_AFTER_COMMIT, {})[hook] = None


def is_outage(error: BaseException) -> bool:
    """Whether the same statement can succeed later: the database is unreachable or too busy."""
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    return isinstance(error, OperationalError | InterfaceError | PoolTimeoutError)


def shown_url(url: URL) -> str:
    return url.render_as_string(hide_password=True)


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
        self.before_commit: Callable[[Session], None] | None = None
        """Called in each transaction that writes; the API writes the audit log in it."""

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
        for hook in session.info.pop(_AFTER_COMMIT, ()):
            hook(self._one_statement)

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
