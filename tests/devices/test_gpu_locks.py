"""Locks on GPUs, between real processes."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from pydantic import SecretStr

from chaos.checks.checker import is_free
from service.settings import Settings
from tests.processes.support import STUB, command, environment
from tests.support.gpus.gpus import gpus
from tests.support.servers.services import wait_until
from tests.support.stages import request as stub_request
from worker.__main__ import _concurrency, main
from worker.devices import gpu_locks
from worker.devices.gpu_locks import GpuLockError, GpuLocks, HeldGpus
from worker.processes import spawn
from worker.processes.child import Child
from worker.processes.fork_client import ForkClient
from worker.processes.spawn import Start

# A supervisor: acquires a GPU, prints it, and starts a stage that inherits the lock.
_HOLDER = """
import subprocess, sys
from pathlib import Path
from tests.support.gpus.gpus import gpus
from worker.devices.gpu_locks import GpuLocks
taken = GpuLocks(Path(sys.argv[1]), gpus(*sys.argv[2:])).acquire(1)
stage = subprocess.Popen(["sleep", "600"], pass_fds=taken.descriptors)
print(*taken.gpus, stage.pid, flush=True)
sys.stdin.read()
"""


@contextmanager
def held(taken: HeldGpus | None) -> Iterator[tuple[str, ...]]:
    """Its GPUs, which are released at the end."""
    assert taken is not None
    with taken:
        yield taken.gpus


@pytest.fixture
def locks(tmp_path: Path) -> GpuLocks:
    return GpuLocks(tmp_path, gpus("GPU-a", "GPU-b"))


class TestTake:
    def test_each_has_gpus_of_its_own_until_they_are_released(self, locks: GpuLocks) -> None:
        first, second = locks.acquire(1), locks.acquire(1)
        assert first is not None
        assert second is not None
        assert (first.gpus, second.gpus) == (("GPU-a",), ("GPU-b",))
        assert locks.acquire(1) is None
        first.release()
        third = locks.acquire(1)
        assert third is not None
        assert third.gpus == ("GPU-a",)
        for taken in (second, third):
            taken.release()

    def test_all_or_none(self, locks: GpuLocks) -> None:
        with held(locks.acquire(1)) as first:
            assert first == ("GPU-a",)
            assert locks.acquire(2) is None
            with held(locks.acquire(1)) as second:
                assert second == ("GPU-b",)
        with held(locks.acquire(2)) as both:
            assert both == ("GPU-a", "GPU-b")

    def test_workers_that_see_the_same_gpu_do_not_share_it(self, tmp_path: Path) -> None:
        one, other = GpuLocks(tmp_path, gpus("GPU-a", "GPU-b")), GpuLocks(tmp_path, gpus("GPU-b"))
        with held(other.acquire(1)), held(one.acquire(1)) as taken:
            assert taken == ("GPU-a",)
            assert one.acquire(1) is None

    def test_a_process_gets_at_most_one_instance_of_a_gpu(self, tmp_path: Path) -> None:
        locks = GpuLocks(tmp_path, gpus("GPU-a", "MIG-1", "MIG-2", "GPU-b"))
        assert locks.most == 2
        with held(locks.acquire(2)) as whole:
            assert whole == ("GPU-a", "GPU-b")
        # A job of one GPU leaves full GPUs to those that need several.
        with held(locks.acquire(1)) as first, held(locks.acquire(1)) as second:
            assert (first, second) == (("MIG-1",), ("MIG-2",))

    def test_an_old_drivers_name_of_an_instance_is_not_a_path(self, tmp_path: Path) -> None:
        with held(GpuLocks(tmp_path, gpus("MIG-GPU-a/1/0")).acquire(1)):
            assert [path.name for path in tmp_path.iterdir()] == ["MIG-GPU-a_1_0.lock"]


@pytest.mark.usefixtures("processes")
class TestDeath:
    def test_a_gpu_is_free_when_supervisor_and_stage_have_both_ended(
        self, locks: GpuLocks, tmp_path: Path
    ) -> None:
        with subprocess.Popen(
            [sys.executable, "-c", _HOLDER, str(tmp_path), "GPU-a", "GPU-b"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as holder:
            assert holder.stdout is not None
            gpu, stage = holder.stdout.readline().split()
            assert gpu == "GPU-a"
            holder.kill()
            holder.wait()
        # Its memory on the GPU is not free yet.
        with held(locks.acquire(1)) as other:
            assert other == ("GPU-b",)
        os.kill(int(stage), signal.SIGKILL)
        wait_until(lambda: is_free(tmp_path / "GPU-a.lock"), 10, "the end of the stage")


class TestLine:
    def test_one_is_first(self, locks: GpuLocks) -> None:
        with locks.scheduler_lock() as second:
            with locks.scheduler_lock() as first:
                assert first.try_acquire()
                assert not second.try_acquire()
            assert second.try_acquire()

    def test_those_with_other_gpus_are_in_another_line(
        self, locks: GpuLocks, tmp_path: Path
    ) -> None:
        reordered = GpuLocks(tmp_path, gpus("GPU-b", "GPU-a"))
        others = GpuLocks(tmp_path, gpus("GPU-b"))
        with (
            locks.scheduler_lock() as first,
            reordered.scheduler_lock() as same,
            others.scheduler_lock() as other,
        ):
            assert first.try_acquire()
            assert not same.try_acquire()
            assert other.try_acquire()


class TestCheck:
    def test_a_folder_that_locks(self, tmp_path: Path) -> None:
        gpu_locks.check(tmp_path / "devices")
        assert list((tmp_path / "devices").iterdir()) == []

    def test_a_folder_that_does_not_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def flock(*_: object) -> None:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

        monkeypatch.setattr(fcntl, "flock", flock)
        with pytest.raises(GpuLockError) as caught:
            gpu_locks.check(tmp_path)
        assert str(caught.value).startswith(
            f"{tmp_path} cannot lock files (No locks available), and without locks two trainings "
            "could get the same GPU: put FINETUNE_HOME on"
        )


class TestStages:
    """However a stage is started, its GPUs are locked while it lives."""

    @pytest.fixture(params=["new interpreter", "fork"])
    def start(self, request: pytest.FixtureRequest, processes: None) -> Iterator[Start]:
        if request.param == "new interpreter":
            yield spawn.new_interpreter
            return
        if sys.platform != "linux":
            pytest.skip("Linux only")
        with closing(ForkClient(environment(), modules=(STUB,), imports=(STUB,))) as forks:
            yield forks.start

    def test_a_stage_holds_the_lock(self, locks: GpuLocks, tmp_path: Path, start: Start) -> None:
        taken = locks.acquire(2)
        assert taken is not None
        request = stub_request.write(tmp_path / "job", "hang")
        with Child(
            command(request),
            environment(),
            tmp_path / "job",
            tmp_path / "log",
            start=start,
            locks=taken.descriptors,
        ):
            taken.release()
            wait_until((tmp_path / "job" / "environment").exists, 30, "the stage")
            assert locks.acquire(1) is None
        with held(locks.acquire(2)) as free:
            assert free == ("GPU-a", "GPU-b")


class TestWorker:
    @pytest.mark.parametrize(
        ("queues", "count", "processes"),
        [
            (["cpu", "gpu"], 0, 1),
            (["cpu"], 8, 1),
            (["gpu", "gpu.2"], 2, 2),
            (["gpu.2"], 2, 2),
            (["cpu", "gpu"], 8, 10),
        ],
    )
    def test_has_a_process_for_each_gpu(
        self, queues: list[str], count: int, processes: int
    ) -> None:
        assert _concurrency(queues, count) == processes

    def test_does_not_start_where_gpus_cannot_be_locked(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "cache").mkdir()
        (tmp_path / "cache" / "devices").touch()
        settings = Settings(home=tmp_path, redis_url=SecretStr("redis://127.0.0.1:1"))
        monkeypatch.setattr("worker.__main__.get_settings", lambda: settings)
        monkeypatch.setattr("worker.devices.gpus.gpus", lambda: gpus("GPU-a"))
        monkeypatch.setattr(sys, "argv", ["worker"])
        with pytest.raises(SystemExit, match=r"cache/devices cannot lock files \(File exists\)"):
            main()
