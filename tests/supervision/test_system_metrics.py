"""Sampling of a real process tree."""

import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pynvml
import pytest
from structlog.testing import capture_logs

from service.contract.stage.events import Metric
from tests.support.gpus.nvml import NO_PERMISSION, Gpu, Nvml
from tests.support.servers.services import wait_until
from worker.supervision import system_metrics
from worker.supervision.system_metrics import SystemSampler

# A parent that does nothing and a child that keeps a core busy and 80 MB in use.
_TREE = """
import subprocess, sys
busy = "data = bytearray(80_000_000)\\nwhile True: pass"
subprocess.run([sys.executable, "-c", busy])
"""

VALUES = {
    "nvmlDeviceGetMemoryInfo": "memory_used_bytes",
    "nvmlDeviceGetUtilizationRates": "utilization_percent",
}


def gpus() -> list[Gpu]:
    return [
        Gpu(f"GPU-{letter}", used_bytes=10 * number, utilization=number)
        for number, letter in enumerate("abc", start=1)
    ]


@pytest.fixture
def stage(processes: None) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", _TREE]) as process:
        root = psutil.Process(process.pid)
        wait_until(lambda: bool(root.children()), 10, "the child")
        yield process
        for child in root.children(recursive=True) if process.poll() is None else []:
            child.kill()
        process.kill()


class TestSystemSampler:
    def test_sums_the_tree_and_counts_seconds_since_the_job(
        self, stage: subprocess.Popen[bytes], tmp_path: Path
    ) -> None:
        found: list[Metric] = []
        created = datetime.now(UTC) - timedelta(seconds=3600)
        with SystemSampler(
            stage.pid, found.append, created, interval=0.3, disk=tmp_path
        ) as sampler:
            wait_until(lambda: len(found) >= 4, 20, "samples")
        assert not sampler._thread.is_alive()
        last = found[-1]
        assert last.kind == "system"
        assert 3600 <= last.step < 3620
        assert max(metric.values["cpu_percent"] for metric in found) > 20
        assert last.values["memory_rss_bytes"] > 80_000_000
        free = psutil.disk_usage(str(tmp_path)).free
        assert last.values["disk_free_bytes"] == pytest.approx(free, rel=0.2)

    def test_a_short_stage_has_a_sample_as_well(
        self, stage: subprocess.Popen[bytes], tmp_path: Path
    ) -> None:
        found: list[Metric] = []
        with SystemSampler(stage.pid, found.append, datetime.now(UTC), 3600, disk=tmp_path):
            wait_until(lambda: len(found) == 1, 20, "the first sample")

    def test_ends_with_the_stage(self, stage: subprocess.Popen[bytes], tmp_path: Path) -> None:
        found: list[Metric] = []
        sampler = SystemSampler(stage.pid, found.append, datetime.now(UTC), 0.05, disk=tmp_path)
        with sampler:
            for child in psutil.Process(stage.pid).children():
                child.kill()
            stage.kill()
            stage.wait()
            wait_until(lambda: not sampler._thread.is_alive(), 10, "the end of the sampling")

    def test_no_error_of_nvml_ends_it(
        self, stage: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        Nvml(gpus(), errors=dict.fromkeys(VALUES, pynvml.NVML_ERROR_UNKNOWN)).install(monkeypatch)
        found: list[Metric] = []
        created = datetime.now(UTC)
        with SystemSampler(
            stage.pid, found.append, created, interval=0.05, disk=tmp_path, gpus=["GPU-a"]
        ):
            wait_until(lambda: len(found) >= 3, 20, "samples")
        assert set(found[-1].values) == {"cpu_percent", "memory_rss_bytes", "disk_free_bytes"}


class TestGpus:
    def test_the_jobs_own_in_its_order(self, monkeypatch: pytest.MonkeyPatch) -> None:
        nvml = Nvml(gpus()).install(monkeypatch)
        with system_metrics._gpus(["GPU-c", "GPU-a"]) as found:
            assert found.usage() == {
                "gpu_0_memory_used_bytes": 30.0,
                "gpu_0_utilization_percent": 3.0,
                "gpu_1_memory_used_bytes": 10.0,
                "gpu_1_utilization_percent": 1.0,
            }
        assert nvml.users == 0

    def test_a_mig_instance_has_no_utilization(self, monkeypatch: pytest.MonkeyPatch) -> None:
        whole = Gpu("GPU-cut").cut(Gpu("MIG-1", used_bytes=5), Gpu("MIG-2", used_bytes=6))
        Nvml([whole]).install(monkeypatch)
        with system_metrics._gpus(["MIG-2"]) as found:
            assert found.usage() == {"gpu_0_memory_used_bytes": 6.0}

    @pytest.mark.parametrize("function", [*VALUES, "nvmlDeviceGetHandleByUUID"])
    def test_each_error_is_logged_once(
        self, monkeypatch: pytest.MonkeyPatch, function: str
    ) -> None:
        nvml = Nvml(gpus(), errors={function: NO_PERMISSION}).install(monkeypatch)
        left_out = VALUES.get(function, list(VALUES.values()))
        with system_metrics._gpus(["GPU-a"]) as found, capture_logs() as logs:
            for _ in range(3):
                assert {f"gpu_0_{name}" for name in VALUES.values() if name not in left_out} == set(
                    found.usage()
                )
            assert [entry["name"] for entry in logs] == [
                f"gpu_0_{name}" for name in VALUES.values() if name in left_out
            ]
            nvml.errors.clear()
            assert len(found.usage()) == 2

    @pytest.mark.parametrize(
        "code", [pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH]
    )
    def test_none_where_nvml_does_not_work(
        self, monkeypatch: pytest.MonkeyPatch, code: int
    ) -> None:
        Nvml(init_error=code).install(monkeypatch)
        with capture_logs() as logs, system_metrics._gpus(["GPU-a"]) as found:
            assert found.usage() == {}
        assert [entry["error"] for entry in logs] == [str(pynvml.NVMLError(code))]

    def test_a_cpu_job_samples_no_gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        Nvml(init_error=NO_PERMISSION).install(monkeypatch)
        with capture_logs() as logs, system_metrics._gpus([]) as found:
            assert found.usage() == {}
        assert logs == []
