import pytest

from tests.training.support import reset_accelerate


@pytest.fixture(autouse=True)
def fresh_accelerate() -> None:
    """Some checks train in this process, where an earlier test may have used another precision."""
    reset_accelerate()
