import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from service.cli.servers import up
from service.cli.stack import orphans
from service.cli.stack.devices import visible_gpus
from service.cli.terminal.exit_codes import UsageError
from service.settings import Settings
from service.store.database import Database
from service.system import own_packages

ROOT = Path(__file__).resolve().parents[3]

# Of `python -m worker.devices.gpus` on a machine with a GPU in MIG mode and a whole one.
_TWO_GPUS = """
import runpy
import pytest
from tests.support.gpus.nvml import Gpu, Nvml
Nvml([Gpu("GPU-a").cut(Gpu("MIG-a")), Gpu("GPU-b")]).install(pytest.MonkeyPatch())
runpy.run_module("worker.devices.gpus", run_name="__main__")
"""


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    real = subprocess.run

    def run(command: list[str], **options: Any) -> Any:
        assert command == own_packages.python("worker.devices.gpus")
        options["env"] = {**options["env"], "PYTHONPATH": str(ROOT)}
        return real([sys.executable, "-c", _TWO_GPUS], **options)

    monkeypatch.setattr(subprocess, "run", run)


class TestVisibleGpus:
    @pytest.mark.usefixtures("processes")
    @pytest.mark.parametrize(
        ("visible", "gpus"),
        [
            ({}, ["MIG-a", "GPU-b"]),
            ({"CUDA_VISIBLE_DEVICES": "1"}, ["GPU-b"]),
            ({"CUDA_VISIBLE_DEVICES": "GPU-b,MIG-a"}, ["GPU-b", "MIG-a"]),
            ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ],
    )
    def test_as_a_worker_with_this_environment_has_them(
        self, two_gpus: None, visible: dict[str, str], gpus: list[str]
    ) -> None:
        assert visible_gpus(visible) == gpus

    @pytest.mark.usefixtures("processes")
    def test_what_this_machine_has(self) -> None:
        assert visible_gpus({"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "-1"}) == []

    @pytest.mark.usefixtures("processes")
    def test_packages_that_are_missing(self, tmp_path: Path) -> None:
        (tmp_path / "pynvml.py").write_text("raise ImportError('not installed')")
        with pytest.raises(UsageError, match=r"cannot be listed: ImportError: not installed"):
            visible_gpus({"PYTHONPATH": f"{tmp_path}:{ROOT}"})

    def test_a_driver_that_hangs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def run(*_: Any, **options: Any) -> None:
            raise subprocess.TimeoutExpired("worker.devices.gpus", options["timeout"])

        monkeypatch.setattr(subprocess, "run", run)
        with pytest.raises(UsageError, match="did not answer within 60 s"):
            visible_gpus({})


class TestWorkersOfUp:
    def test_each_has_its_gpus_alone(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(up, "visible_gpus", lambda _: ["GPU-a", "GPU-b"])
        seen = {}
        for size in (None, 1, 2, 3):
            settings = Settings(home=tmp_path, gpus_per_worker=size)
            stack = up.Stack(settings, orphans.Mark(tmp_path), "http://127.0.0.1:1", None, None)
            database = Database("sqlite://")
            *_, workers = up._tiers(stack, database, announce=lambda: None)
            database.dispose()
            assert not any("--concurrency" in part.argv for part in workers)
            seen[size] = [(part.name, part.env["CUDA_VISIBLE_DEVICES"]) for part in workers]
        cpu = ("worker-cpu", "")
        spare = [("worker-preview", ""), ("worker-predict", "GPU-a,GPU-b")]
        assert seen[1] == [cpu, ("worker-gpu0", "GPU-a"), ("worker-gpu1", "GPU-b"), *spare]
        both = ("worker-gpu0-1", "GPU-a,GPU-b")
        assert seen[None] == seen[2] == seen[3] == [cpu, both, *spare]
