"""Base models, a Hub, and a child that runs `prepare` for many tests."""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.stages.support import TOKEN, EndedStage, Forks, Run, StageServer, request
from tests.support.hub import HubDouble
from tests.support.models import save_tiny_bert


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_bert(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def models(model: Path, tmp_path: Path) -> Path:
    """A folder of models of this test alone, with a copy of the tiny one as `tiny`."""
    shutil.copytree(model, tmp_path / "models" / "tiny")
    return tmp_path / "models"


@pytest.fixture(scope="session")
def hub() -> Iterator[HubDouble]:
    with HubDouble({TOKEN: {"me"}}) as double:
        yield double


@pytest.fixture(scope="package")
def server(
    tmp_path_factory: pytest.TempPathFactory, hub: HubDouble, processes: None
) -> Iterator[StageServer]:
    folder = tmp_path_factory.mktemp("server")
    server = StageServer(folder, hub.environment(folder / "home"), "prepare", "train")
    yield server
    server.close()


@pytest.fixture(scope="package")
def forks(tmp_path_factory: pytest.TempPathFactory, processes: None) -> Forks:
    return Forks("worker.stages.prepare.stage", tmp_path_factory.mktemp("forks"))


@pytest.fixture
def run(server: StageServer, tmp_path: Path) -> Run:
    """Runs `prepare` on a spec, in the shared child; keywords go into the request."""

    def run_it(body: Mapping[str, Any], token: str | None = None, **more: Any) -> EndedStage:
        return server.run(request(tmp_path, body, **more), token)

    return run_it
