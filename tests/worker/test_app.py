"""The Celery application of a worker."""

import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from service.store.scheduling.registration import WorkerInfo
from worker.app import app
from worker.lifecycle import registration
from worker.supervision.limits import stage_group


class TestLoader:
    def test_imports_nothing_from_the_current_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Celery's own would, and with it all that a module which it loads imports."""
        (tmp_path / "only_in_this_folder.py").touch()
        monkeypatch.chdir(tmp_path)
        with pytest.raises(ModuleNotFoundError):
            app.loader.import_from_cwd("only_in_this_folder")
        assert app.loader.import_from_cwd("worker.run").__name__ == "worker.run"


def test_a_worker_registers_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service refuses a spec that needs one which no worker has."""
    registered: list[WorkerInfo] = []

    class Registration:
        def __init__(self, _url: str, info: WorkerInfo, _beat_seconds: float) -> None:
            registered.append(info)

        def start(self) -> None: ...

    module: Any = sys.modules["worker.app"]
    monkeypatch.setattr(module, "Registration", Registration)
    monkeypatch.setattr(module, "_registration", None)
    monkeypatch.setattr(
        module, "_settings", module._settings.model_copy(update={"doctor_at_start": False})
    )
    monkeypatch.setattr(module.layers, "missing", lambda _settings: [])
    monkeypatch.setattr(stage_group, "prepare", lambda: "nothing")
    monkeypatch.setattr(registration, "packages", lambda: ["torchao"])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    module._register(SimpleNamespace(hostname="w@h", controller=SimpleNamespace(concurrency=3)))
    [info] = registered
    assert (info.id, info.pid, info.slots, info.packages) == ("w@h", os.getpid(), 3, ["torchao"])
