"""Fixtures that every room shares: real databases and brokers.

A test that asks for `database` runs on SQLite and on Postgres; one that asks for `broker_url` on
Valkey and on Redis. Where a server cannot be had the test is skipped with the reason, unless
CI=true or FINETUNE_TEST_REQUIRE_ALL=1, where nothing may be left out.
"""

import os
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from service.store import schema
from service.store.database import Database
from service.store.models import Base
from tests.support import mlflow_server as mlflow
from tests.support import services

# Stages are started with -P, and some of those that tests start are modules of the tests.
os.environ.setdefault("PYTHONPATH", str(Path(__file__).resolve().parents[1]))

# As the service's own processes have it; the pretty ones take seconds each.
structlog.configure(
    processors=[
        structlog.stdlib.add_log_level,
        structlog.dev.ConsoleRenderer(
            colors=False, exception_formatter=structlog.dev.plain_traceback
        ),
    ]
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread the files marked `long` over the first two thirds of the others.

    Several test processes take files in this order: the long ones mostly wait, which costs least
    beside short ones, and none of them is begun when the others have run out.
    """
    files: dict[Path, list[pytest.Item]] = defaultdict(list)
    for item in items:
        files[item.path].append(item)
    long = [path for path, tests in files.items() if tests[0].get_closest_marker("long")]
    short = [path for path in files if path not in long]
    between = len(short) * 2 // 3 // max(1, len(long))
    for place, path in enumerate(long):
        short.insert(place * (between + 1), path)
    items[:] = [item for path in short for item in files[path]]


def _unavailable(error: services.UnavailableError) -> None:
    if os.environ.get("CI") == "true" or os.environ.get("FINETUNE_TEST_REQUIRE_ALL") == "1":
        pytest.fail(f"nothing may be left out here: {error}")
    pytest.skip(str(error))


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A migrated Postgres database of this test process."""
    try:
        server = services.find_postgres()
    except services.UnavailableError as error:
        _unavailable(error)
        raise
    with services.postgres_database(server) as url:
        database = Database(url)
        schema.upgrade(database.engine)
        database.dispose()
        yield url


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "finetune.db"
    database = Database(f"sqlite:///{path}")
    schema.upgrade(database.engine)
    database.dispose()
    return path


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty, migrated database of each kind."""
    if request.param == "sqlite":
        path = tmp_path / "finetune.db"
        shutil.copy(request.getfixturevalue("sqlite_template"), path)
        return f"sqlite:///{path}"
    url: str = request.getfixturevalue("postgres_url")
    database = Database(url)
    with database.write() as session:
        for table in reversed(Base.metadata.sorted_tables):
            session.execute(table.delete())
    database.dispose()
    return url


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    database = Database(database_url)
    yield database
    database.dispose()


@pytest.fixture(scope="session", params=["valkey", "redis"])
def broker_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A private broker of each kind."""
    find = services.valkey_binary if request.param == "valkey" else services.redis_binary
    try:
        binary = find()
    except services.UnavailableError as error:
        _unavailable(error)
        raise
    with services.broker(binary) as url:
        yield url


@pytest.fixture(scope="session")
def mlflow_server() -> mlflow.MlflowServer:
    """A tracking server that the whole session shares; its tests tell their jobs apart."""
    return mlflow.shared()


@pytest.fixture(scope="session")
def mlflow_uri(mlflow_server: mlflow.MlflowServer) -> str:
    return mlflow_server.uri


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
