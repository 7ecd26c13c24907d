"""The fixtures of the worker's main process."""

from tests.support.workers.fixtures import flaky, settings
from tests.support.workers.stack import stack

__all__ = ["flaky", "settings", "stack"]
