"""The fixtures of the API's tests, and both clients on the real server."""

from collections.abc import Iterator

import pytest
from finetune_client import Client
from finetune_client.http import retries

from tests.api.conftest import Server, api_broker_url, api_settings, server

__all__ = ["api_broker_url", "api_settings", "server"]


@pytest.fixture
def finetune(server: Server) -> Iterator[Client]:
    with Client(server.url, api_key="ft-none") as client:
        yield client


@pytest.fixture
def fast_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "FIRST_WAIT", 0.01)
