"""Settings and a database for the tests of the worker's main process."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from service.settings import Settings
from tests.support.store.flaky import Flaky
from worker.supervision import system_metrics


@pytest.fixture
def settings(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """As in production, but with shorter intervals."""
    # A slow machine's stub would be sampled, and its numbers counted with the job's.
    monkeypatch.setattr(system_metrics, "_FIRST_SECONDS", 60.0)
    return Settings(
        home=tmp_path / "home",
        database_url=database_url,
        beat_seconds=0.3,
        poll_seconds=0.1,
        lease_seconds=5,
        kill_seconds=3,
        stop_grace_seconds=1,
        retry_backoff_seconds=0.1,
    )


@pytest.fixture
def flaky(settings: Settings) -> Iterator[Flaky]:
    database = Flaky(settings.sqlalchemy_url)
    yield database
    database.dispose()
