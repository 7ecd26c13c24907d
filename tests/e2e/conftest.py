"""A running service per pair of database and broker, which all tests of this folder share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.data import write_squad
from tests.e2e.stack import Stack, running
from tests.support.hub import HubDouble
from tests.support.models import save_tiny_bert

TOKEN = "hf_" + "e2e" * 11


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_bert(tmp_path_factory.mktemp("models") / "tiny-bert")


@pytest.fixture(scope="session")
def squad(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Split → a small real SQuAD v2 file."""
    return write_squad(tmp_path_factory.mktemp("squad"))


@pytest.fixture(scope="session")
def hub() -> Iterator[HubDouble]:
    with HubDouble(tokens={TOKEN: {"org"}}) as hub:
        yield hub


@pytest.fixture(scope="package", params=["postgres-redis", "sqlite-valkey"])
def stack(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    tiny_model: Path,
    hub: HubDouble,
    mlflow_uri: str,
) -> Iterator[Stack]:
    variables = {
        "FINETUNE_MLFLOW_URI": mlflow_uri,
        "FINETUNE_HUB_ENDPOINT": hub.endpoint,
        "FINETUNE_HUB_TOKEN": TOKEN,
        "HF_HUB_DISABLE_XET": "1",
        "FINETUNE_WEBHOOK_ALLOW": "127.0.0.1",
        "FINETUNE_MODEL_ROOTS": str(tiny_model.parent),
    }
    with running(tmp_path_factory.mktemp(request.param), request.param, variables) as stack:
        yield stack
