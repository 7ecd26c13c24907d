"""Fixtures that every room shares: real databases and brokers.

A test that asks for `database` runs on SQLite, on Postgres or on both, as
`tests/support/store/databases.py` decides; one that asks for `broker_url` on Valkey and on Redis.
Where a server cannot be had the test is skipped with the reason, unless CI=true or
FINETUNE_TEST_REQUIRE_ALL=1, where nothing may be left out.
"""

import gc
import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from sqlalchemy import text

from service.store import database, schema
from service.store.database import Database, db_now
from service.store.tables.base import Base
from service.store.tables.projects import DEFAULT_PROJECT, ProjectRow
from tests.support import distribution, tiers
from tests.support.servers import mlflow_server, services, shared_servers
from tests.support.servers.packages import UnavailableError
from tests.support.store import databases

# While tests are imported, a sixth of the time would go into looking for garbage.
gc.disable()
# Stages are started with -P, and some of those that tests start are modules of the tests.
os.environ.setdefault("PYTHONPATH", str(Path(__file__).resolve().parents[1]))
# And a confined stage sees only what it needs.
os.environ.setdefault("FINETUNE_SANDBOX_READ", str(Path(__file__).resolve().parent))

# As the service's own processes have it; the pretty ones take seconds each.
structlog.configure(
    processors=[
        structlog.stdlib.add_log_level,
        structlog.dev.ConsoleRenderer(
            colors=False, exception_formatter=structlog.dev.plain_traceback
        ),
    ]
)


def _configure_sqlite(connection: Any, _record: Any) -> None:
    """No test switches the machine off: a commit need not wait for the disk."""
    _CONFIGURE_SQLITE(connection, _record)
    connection.execute("PRAGMA synchronous=OFF")


_CONFIGURE_SQLITE = database._configure_sqlite
database._configure_sqlite = _configure_sqlite
os.fsync = lambda fd: None  # for the same reason
_TABLES = [table.name for table in reversed(Base.metadata.sorted_tables)]
# In one round trip. Only TRUNCATE removes young rows of the audit log, and it takes milliseconds.
_EMPTY = text(
    "DO $$ BEGIN IF EXISTS (SELECT FROM audit_log) THEN TRUNCATE audit_log; END IF; "
    + " ".join(f"DELETE FROM {table};" for table in _TABLES)
    + " END $$"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--databases",
        choices=["default", "all"],
        default="default",
        help="all: every test with a database on SQLite and on Postgres, as before a release",
    )
    parser.addoption(
        "--tier",
        choices=["fast", "all"],
        default="all",
        help="fast: only tests that start no process, see tests/support/tiers.py",
    )


def pytest_configure(config: pytest.Config) -> None:
    """The process that starts pytest-xdist's others owns the servers that they share.

    A shell ignores SIGINT in what it starts with `&` or after `trap '' INT`, and so would every
    process of the tests, some of which are sent one.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):
        shared_servers.folder()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return distribution.is_left_to_another(collection_path, config) or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = items if config.getoption("databases") == "all" else databases.default(items)
    chosen = tiers.fast(chosen) if config.getoption("tier") == "fast" else chosen
    if left_out := set(items).difference(chosen):
        config.hook.pytest_deselected(items=left_out)
    items[:] = distribution.in_order(chosen)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    with tiers.watched(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    with tiers.watched(item):
        return (yield)


def pytest_collection_finish() -> None:
    """Imports stay in memory: a full collection that visits them takes a fifth of a second."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> distribution.ByUnit:
    return distribution.ByUnit(config, log)


def _unavailable(error: UnavailableError) -> None:
    if os.environ.get("CI") == "true" or os.environ.get("FINETUNE_TEST_REQUIRE_ALL") == "1":
        pytest.fail(f"nothing may be left out here: {error}")
    pytest.skip(str(error))


@pytest.fixture(autouse=True)
def _umask() -> Iterator[None]:
    """Programs that a test runs in this process may set it: `make_private` does."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture(scope="session")
def processes() -> None:
    """For fixtures and tests that start a process: `make test` leaves their tests out."""


@pytest.fixture(scope="session")
def trainings() -> Iterator[None]:
    """For fixtures and tests that train a model in this process: `make test` leaves them out.

    Jobs that a test compares have homes of their own, and must not measure the machine each for
    itself."""
    from worker.training.kernels import cpu_attention_choice

    seconds = cpu_attention_choice.Seconds(2.0, 1.0, 2.0, 1.0)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cpu_attention_choice, "measured", lambda _shape: seconds)
        yield


@pytest.fixture(scope="session")
def postgres_url(processes: None) -> Iterator[str]:
    """A migrated Postgres database of this test process."""
    try:
        server = services.find_postgres()
    except UnavailableError as error:
        _unavailable(error)
        raise
    with services.postgres_database(server) as url:
        database = Database(url)
        schema.upgrade(database.engine)
        database.dispose()
        yield url


@pytest.fixture(scope="session")
def _emptied_postgres(postgres_url: str) -> Iterator[Database]:
    """Its connection stays open from test to test."""
    database = Database(postgres_url)
    yield database
    database.dispose()


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """For copies: what one test writes into it, all later ones would find."""
    path = tmp_path_factory.mktemp("template") / "finetune.db"
    database = Database(f"sqlite:///{path}")
    schema.upgrade(database.engine)
    database.dispose()
    made = path.read_bytes()
    yield path
    assert path.read_bytes() == made, "a test has changed the template"


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    path = tmp_path / "finetune.db"
    shutil.copy(sqlite_template, path)
    return f"sqlite:///{path}"


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    """An empty, migrated database of each kind."""
    if request.param == "sqlite":
        copied: str = request.getfixturevalue("sqlite_url")
        return copied
    emptied: Database = request.getfixturevalue("_emptied_postgres")
    with emptied.write() as session:
        session.execute(_EMPTY)
        session.add(ProjectRow(id=DEFAULT_PROJECT, name=DEFAULT_PROJECT, created_at=db_now()))
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture(name="database")
def _database(database_url: str) -> Iterator[Database]:
    made = Database(database_url)
    yield made
    made.dispose()


@pytest.fixture(scope="session", params=["valkey", "redis"])
def broker_url(request: pytest.FixtureRequest, processes: None) -> Iterator[str]:
    """A private broker of each kind."""
    find = services.valkey_binary if request.param == "valkey" else services.redis_binary
    try:
        binary = find()
    except UnavailableError as error:
        _unavailable(error)
        raise
    with services.broker(binary) as url:
        yield url


@pytest.fixture(scope="session")
def mlflow_uri(processes: None) -> str:
    """Of a tracking server that the whole run shares; its tests tell their jobs apart."""
    return mlflow_server.shared_uri()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say plainly what was left out, and why: one line for each reason."""
    reasons = Counter(
        str(report.longrepr[-1]).removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", [])
    )
    if reasons:
        terminalreporter.section("left out")
    for reason, count in reasons.most_common():
        terminalreporter.line(f"{count} tests: {reason}")
