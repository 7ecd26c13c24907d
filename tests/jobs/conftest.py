import pytest

from service.jobs.dispatch import Dispatcher
from service.settings import Settings


@pytest.fixture
def unreachable() -> Dispatcher:
    """No broker is configured: as if it were always unreachable."""
    return Dispatcher(Settings(redis_url=None))
