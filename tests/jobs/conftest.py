from pathlib import Path

import pytest

from service.jobs.dispatch import Dispatcher
from service.settings import Settings


@pytest.fixture
def unreachable() -> Dispatcher:
    """Without a broker, as if it were always unreachable."""
    return Dispatcher(Settings(redis_url=None))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"
