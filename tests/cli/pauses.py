"""What happens in a job between two requests of a command."""

import time
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import pytest


def in_pauses(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, *happens: Callable[[], None]
) -> None:
    """A command's waits between two requests are replaced by these actions, one each."""
    coming = iter(happens)
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _seconds: next(coming)())
    monkeypatch.setattr(module, "time", clock)
