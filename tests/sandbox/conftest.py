"""The fixtures of the worker's main process, and each layer that this machine has."""

import pytest

from tests.support.workers.fixtures import flaky, settings
from worker.sandbox import landlock, layers
from worker.sandbox.view import Layer

__all__ = ["flaky", "settings"]


@pytest.fixture(params=Layer)
def layer(request: pytest.FixtureRequest, processes: None) -> Layer:
    layer = Layer(request.param)
    if layer is Layer.LANDLOCK and landlock.version() < landlock.FILES:
        pytest.skip("no Landlock")
    if layer is Layer.NAMESPACES and not layers._has_namespaces():
        pytest.skip("no user namespaces")
    return layer
