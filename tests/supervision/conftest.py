"""The fixtures of the worker's main process."""

from tests.support.workers.fixtures import flaky, settings

__all__ = ["flaky", "settings"]
