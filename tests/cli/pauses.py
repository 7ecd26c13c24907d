"""What happens in a job between two requests of a command."""

import time
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import pytest
from finetune_client.errors import RateLimitError

from service.cli.jobs import history
from service.cli.terminal import client


def in_pauses(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, *happens: Callable[[], None]
) -> None:
    """A command's waits between two requests are replaced by these actions, one each. The service
    is one without live streams, so that the command polls."""

    def refuse(*_: object) -> None:
        raise RateLimitError(429, {"code": "too_many_streams"})

    monkeypatch.setattr(client.Client, "messages", refuse)
    monkeypatch.setattr(history, "POLL_SECONDS", 0.05)
    coming = iter(happens)
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _seconds: next(coming)())
    monkeypatch.setattr(module, "time", clock)
