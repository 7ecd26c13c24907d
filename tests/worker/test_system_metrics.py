"""Sampling of a real process tree."""

import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pynvml
import pytest

from service.contract.events import Metric
from tests.services import wait_until
from worker import system_metrics
from worker.system_metrics import SystemSampler

# A parent that does nothing and a child that keeps a core busy and 80 MB in use.
_TREE = """
import subprocess, sys
busy = "data = bytearray(80_000_000)\\nwhile True: pass"
subprocess.run([sys.executable, "-c", busy])
"""


@pytest.fixture
def stage() -> Iterator[subprocess.Popen[bytes]]:
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
        sampler.start()
        for child in psutil.Process(stage.pid).children():
            child.kill()
        stage.kill()
        stage.wait()
        wait_until(lambda: not sampler._thread.is_alive(), 10, "the end of the sampling")
        sampler.stop()

    def test_gpus_where_the_driver_shows_them(self) -> None:
        with system_metrics._gpus() as gpus:
            usage = gpus.usage()
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError_LibraryNotFound:
            assert usage == {}
            return
        names = {
            f"gpu_{index}_{what}"
            for index in range(pynvml.nvmlDeviceGetCount())
            for what in ("utilization_percent", "memory_used_bytes")
        }
        assert set(usage) == names
