"""A live service, without a worker where no job has to run."""

from collections.abc import Iterator

import pytest

from service.settings import Settings
from service.store.database import Database
from tests.api.conftest import api_broker_url, api_settings, running

__all__ = ["api_broker_url", "api_settings"]


@pytest.fixture
def url(api_settings: Settings, database: Database) -> Iterator[str]:
    with running(api_settings) as found:
        yield found
