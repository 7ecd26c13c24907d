"""The fixtures of the worker's main process."""

from tests.support.worker_fixtures import flaky, settings
from tests.support.worker_stack import stack

__all__ = ["flaky", "settings", "stack"]
