"""The command line as a user calls it, and a real API for it to talk to."""

import importlib
import logging
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from json import loads
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from finetune_client.http import retries

from service.cli.app import main
from service.cli.terminal import output
from service.settings import Settings, get_settings
from service.store.database import Database
from tests.support.servers.quick_server import serving
from tests.support.servers.services import free_port


@dataclass(frozen=True)
class Outcome:
    status: int
    out: str
    err: str

    def json(self) -> Any:
        """The only document on stdout; fails if there is anything else."""
        return loads(self.out)

    def json_lines(self) -> list[Any]:
        return [loads(line) for line in self.out.splitlines()]


Cli = Callable[..., Outcome]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sqlite_template: Path) -> Iterator[Path]:
    """FINETUNE_HOME of this test, with a migrated SQLite database; no other setting is left."""
    unset = (
        "PROJECT",
        "URL",
        "API_KEY",
        "DATABASE_URL",
        "REDIS_URL",
        "MLFLOW_URI",
        "HOST",
        "PORT",
        "AUTH",
    )
    for name in unset:
        monkeypatch.delenv(f"FINETUNE_{name}", raising=False)
    home = tmp_path / "home"
    home.mkdir()
    shutil.copy(sqlite_template, home / "finetune.db")
    monkeypatch.setenv("FINETUNE_HOME", str(home))
    monkeypatch.setattr(retries, "FIRST_WAIT", 0.05)
    get_settings.cache_clear()
    yield home
    get_settings.cache_clear()


@pytest.fixture
def store(home: Path) -> Iterator[Database]:
    database = Database(f"sqlite:///{home / 'finetune.db'}")
    yield database
    database.dispose()


@pytest.fixture
def noted_why(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set once a command has noted that there are no workers."""
    noted, note = threading.Event(), output.note

    def noting(text: str) -> None:
        note(text)
        if "live worker" in text:
            noted.set()

    monkeypatch.setattr(output, "note", noting)
    return noted


@pytest.fixture
def cli(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs `finetune …` in this process."""

    def run(*arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["finetune", *arguments])
        monkeypatch.setenv("COLUMNS", "200")
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return Outcome(int(ended.value.code or 0), captured.out, captured.err)

    return run


@pytest.fixture
def api(
    home: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[str]:
    """URL of the real API on this home's database, over real HTTP; its broker is unreachable. Open,
    unless the test gives another FINETUNE_AUTH as its parameter."""
    from service.api.app import create_app

    # anyio loads its parts when first used. Under pytest's import hook that fails on the server's
    # deep stack (CPython 3.11: "AST constructor recursion depth mismatch"), so it is done here.
    importlib.import_module("anyio._core._fileio")
    auth = getattr(request, "param", "off")
    settings = Settings(home=home, auth=auth, redis_url=f"redis://127.0.0.1:{free_port()}/0")
    app = _without_its_logging(create_app, settings)
    with serving(uvicorn.Config(app, port=0, log_config=None, lifespan="on")) as url:
        monkeypatch.setenv("FINETUNE_URL", url)
        yield url


def _without_its_logging(create_app: Callable[[Settings], Any], settings: Settings) -> Any:
    """The app logs to the stderr of its start, which in a test is closed before the app ends."""
    root = logging.getLogger()
    handlers = root.handlers[:]
    app = create_app(settings)
    root.handlers[:] = handlers
    return app


@pytest.fixture
def http(api: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=api, verify=False) as connection:
        yield connection


@pytest.fixture
def job_id(http: httpx.Client) -> str:
    spec = {
        "name": "mine",
        "task": "question-answering",
        "model": {"name_or_path": "org/model"},
        "dataset": {"source": "hub", "name": "org/data"},
    }
    return str(http.post("/v1/jobs", json=spec).raise_for_status().json()["id"])
