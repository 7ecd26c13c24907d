import stat
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from service.cli import orphans, up
from service.cli.devices import visible_gpus
from service.settings import Settings
from service.store.database import Database


class NVMLError(Exception):
    pass


def no_driver() -> None:
    raise NVMLError


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's library as a machine with two GPUs has it."""
    library = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
    )
    monkeypatch.setitem(sys.modules, "pynvml", library)


class TestVisibleGpus:
    def test_one_per_gpu(self, two_gpus: None) -> None:
        assert visible_gpus({}) == ["0", "1"]

    @pytest.mark.parametrize(("value", "gpus"), [("1", ["1"]), ("", []), ("1, 0", ["1", "0"])])
    def test_only_those_that_the_user_leaves(
        self, two_gpus: None, value: str, gpus: list[str]
    ) -> None:
        assert visible_gpus({"CUDA_VISIBLE_DEVICES": value}) == gpus

    def test_none_without_a_driver(self, monkeypatch: pytest.MonkeyPatch) -> None:
        library = SimpleNamespace(NVMLError=NVMLError, nvmlInit=no_driver)
        monkeypatch.setitem(sys.modules, "pynvml", library)
        assert visible_gpus({"CUDA_VISIBLE_DEVICES": "0"}) == []

    def test_asks_the_command_where_the_library_is_missing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "pynvml", None)
        monkeypatch.setenv("PATH", str(tmp_path))
        assert visible_gpus({}) == []
        command = tmp_path / "nvidia-smi"
        command.write_text("#!/bin/sh\necho 0\necho 1\n")
        command.chmod(command.stat().st_mode | stat.S_IXUSR)
        assert visible_gpus({}) == ["0", "1"]


class TestWorkersOfUp:
    def test_each_has_its_gpus_alone(
        self, two_gpus: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        seen = {}
        for size in (1, 2, 3):
            settings = Settings(home=tmp_path, gpus_per_worker=size)
            stack = up.Stack(settings, orphans.Mark(tmp_path), "http://127.0.0.1:1", None, None)
            database = Database("sqlite://")
            *_, workers = up._tiers(stack, database)
            database.dispose()
            seen[size] = [(part.name, part.env["CUDA_VISIBLE_DEVICES"]) for part in workers]
        cpu = ("worker-cpu", "")
        assert seen[1] == [cpu, ("worker-gpu0", "0"), ("worker-gpu1", "1")]
        assert seen[2] == seen[3] == [cpu, ("worker-gpu0-1", "0,1")]
