"""A real uvicorn on a real database and broker."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from pydantic import SecretStr

from service.api.app import create_app
from service.api.http.connection_limits import Limits
from service.api.http.server import options
from service.settings import Settings
from service.store.database import Database
from tests.support.servers import services
from tests.support.servers.quick_server import serving


@dataclass
class Server:
    url: str
    settings: Settings
    database: Database
    client: httpx.Client


def code(answer: httpx.Response) -> tuple[int, str]:
    """The status of a problem, and its code."""
    return answer.status_code, answer.json()["code"]


def upload(client: httpx.Client, content: bytes = b"{}\n", name: str = "a.jsonl") -> httpx.Response:
    files = {"file": (name, content)}
    return client.post("/v1/files", files=files, data={"purpose": "fine-tune"})


def uploaded(client: httpx.Client, *given: Any) -> str:
    """Id of the file."""
    answer = upload(client, *given)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


@contextmanager
def running(settings: Settings, limits: Limits | None = None) -> Iterator[str]:
    """The URL of a uvicorn that serves the app with these settings."""
    config = uvicorn.Config(
        create_app(settings), port=0, lifespan="on", **options(settings, limits)
    )
    with serving(config) as url:
        yield url


@pytest.fixture(scope="session")
def api_broker_url(pytestconfig: pytest.Config) -> Iterator[str]:
    """In the fast tier nothing answers there."""
    if pytestconfig.getoption("tier") == "fast":
        yield "redis://127.0.0.1:1/0"
        return
    with services.broker(services.valkey_binary()) as url:
        yield url


@pytest.fixture
def api_settings(database_url: str, api_broker_url: str, tmp_path: Path) -> Settings:
    home = tmp_path / "home"
    data_root = tmp_path / "data"
    data_root.mkdir()
    return Settings(
        home=home,
        auth="off",
        database_url=SecretStr(database_url),
        redis_url=SecretStr(api_broker_url),
        mlflow_uri="http://mlflow.test:5000/",
        data_roots=[data_root],
        max_upload_bytes=3 * 1024**2,
    )


@pytest.fixture
def server(api_settings: Settings, database: Database) -> Iterator[Server]:
    # Without `verify`: loading certificates, which a plain address does not need, takes 30 ms.
    with (
        running(api_settings) as url,
        httpx.Client(base_url=url, timeout=30, verify=False) as client,
    ):
        yield Server(url, api_settings, database, client)


@pytest.fixture
def client(server: Server) -> httpx.Client:
    return server.client


@pytest.fixture(scope="module")
def shared_client(
    sqlite_template: Path, api_broker_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    """One server for the tests of a module whose result no other test's jobs can change."""
    home = tmp_path_factory.mktemp("shared")
    shutil.copy(sqlite_template, home / "finetune.db")
    settings = Settings(home=home, auth="off", redis_url=SecretStr(api_broker_url))
    with (
        running(settings) as url,
        httpx.Client(base_url=url, timeout=30, verify=False) as client,
    ):
        yield client
