"""worker.stages.launch_ranks: a stage in several ranks, as seen by its supervisor."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from service.contract.failures import FailureCode
from service.contract.stage.events import Finished, Notice
from service.contract.stage.stages import StageRequest
from service.contract.states import Stage
from service.system.prctl import adopt_orphans
from tests.processes.support import finish
from tests.stages.rank_stub import is_alive
from tests.stages.support import REQUEST, EndedStage, fork_environment, fork_server
from tests.support.gpus.gpus import gpus
from tests.support.servers.services import wait_until
from worker import failures
from worker.devices.gpu_locks import GpuLocks
from worker.processes import spawn
from worker.processes.child import Child
from worker.processes.fork_protocol import LAUNCHER
from worker.processes.spawn import Start
from worker.processes.stage_command import stage_command
from worker.stages.base import EXIT_FAILED, EXIT_FINISHED, EXIT_STOPPED
from worker.stages.launch_ranks import _Ranks

STUB = "tests.stages.rank_stub"
SPEC: dict[str, object] = dict(REQUEST["spec"])  # type: ignore[call-overload]


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path) -> object:
    yield
    pids = [int(path.read_text()) for path in tmp_path.glob("pid-*")]
    assert len(pids) == 2
    deadline = time.monotonic() + 5  # the kernel kills an orphan at once; it still has to die
    while any(map(is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(is_alive, pids))


@pytest.fixture(params=["forks", pytest.param("new interpreters", marks=pytest.mark.heavy)])
def launcher(request: pytest.FixtureRequest, tmp_path: Path, processes: None) -> "Launcher":
    start: Start = spawn.new_interpreter
    if request.param == "forks":
        if sys.platform != "linux":
            pytest.skip("Linux only")
        start = fork_server().start
    return Launcher(tmp_path, start)


# How the ranks are started matters little to the rest, and three interpreters import torch.
both = pytest.mark.parametrize("launcher", ["new interpreters", "forks"], indirect=True)


class Launcher:
    """A launcher and two ranks: new interpreters, or forks of a process that has the imports."""

    def __init__(self, folder: Path, start: Start) -> None:
        self.folder = folder
        self._start = start

    def start(self, behaviour: str, locks: tuple[int, ...] = ()) -> Child:
        spec = {**SPEC, "metadata": {"behaviour": behaviour}}
        folder = str(self.folder)
        request = {**REQUEST, "spec": spec, "workspace": folder, "attempt_dir": folder}
        path = self.folder / "request.json"
        path.write_text(json.dumps(request))
        command = [sys.executable, "-P", "-m", LAUNCHER, "2", STUB, str(path)]
        log = self.folder / "log"
        variables = fork_environment()
        return Child(command, variables, self.folder, log, start=self._start, locks=locks)

    def started(self, behaviour: str, locks: tuple[int, ...] = ()) -> Child:
        """While both ranks work."""
        child = self.start(behaviour, locks)
        wait_until(lambda: len(list(self.folder.glob("at-work-*"))) == 2, 60, "both ranks")
        return child

    def run(self, behaviour: str) -> EndedStage:
        return self.wait(self.start(behaviour))

    def wait(self, child: Child) -> EndedStage:
        status, events = finish(child)
        return EndedStage(status, events, (self.folder / "log").read_text())


def open_files(pid: int) -> set[str]:
    return {path.readlink().name for path in Path(f"/proc/{pid}/fd").iterdir()}


class TestEnd:
    @both
    def test_the_first_rank_speaks_and_has_the_result(self, launcher: Launcher) -> None:
        ended = launcher.run("finishes")
        assert ended.status == EXIT_FINISHED
        assert [event.message for event in ended.events if isinstance(event, Notice)] == ["rank 0"]
        assert [type(event) for event in ended.events[1:]] == [Finished]
        assert ended.events[0].data == {"stdin": ""}  # type: ignore[union-attr]
        assert {"rank 0 speaks", "rank 1 speaks"} <= set(ended.log.splitlines())

    def test_any_ranks_failure_is_the_stages(self, launcher: Launcher) -> None:
        ended = launcher.run("one fails")
        assert ended.status == EXIT_FAILED
        assert ended.failure.code is FailureCode.EMPTY_DATASET
        assert (ended.failure.message, ended.failure.details) == ("nothing here", {"n": 3})
        assert "Traceback" in ended.log

    def test_it_is_reported_once(self, launcher: Launcher) -> None:
        ended = launcher.run("all fail")
        assert [event.type for event in ended.events] == ["notice", "failed"]
        assert ended.failure.code is FailureCode.DISK_FULL

    def test_a_killed_rank_is_the_reason_and_not_the_errors_of_the_others(
        self, launcher: Launcher
    ) -> None:
        ended = launcher.run("one is killed")
        assert [event.type for event in ended.events] == ["notice"]
        assert failures.from_exit(ended.status).code is FailureCode.WORKER_LOST
        assert failures.from_exit(ended.status).details == {"signal": "SIGKILL"}

    def test_ranks_that_lose_each_other_are_tried_again(self, launcher: Launcher) -> None:
        assert launcher.run("all lose each other").failure.code is FailureCode.WORKER_LOST


class TestSignals:
    def test_sigterm_stops_all(self, launcher: Launcher) -> None:
        child = launcher.started("waits")
        os.kill(child.pid, signal.SIGTERM)
        ended = launcher.wait(child)
        assert ended.status == EXIT_STOPPED
        assert [event.type for event in ended.events] == ["notice"]

    def test_sigusr1_reaches_the_ranks_and_spares_the_launcher(self, launcher: Launcher) -> None:
        child = launcher.started("stops softly")
        os.kill(child.pid, signal.SIGUSR1)
        ended = launcher.wait(child)
        assert ended.status == EXIT_STOPPED
        assert ended.notices == ["rank 0", "a checkpoint"]

    def test_ranks_hold_the_locks_on_their_gpus_and_do_not_outlive_the_launcher(
        self, launcher: Launcher
    ) -> None:
        taken = GpuLocks(launcher.folder / "devices", gpus("GPU-a", "GPU-b")).acquire(2)
        assert taken is not None
        with taken:
            child = launcher.started("waits", taken.descriptors)
        for file in launcher.folder.glob("pid-*"):
            assert {"GPU-a.lock", "GPU-b.lock"} <= open_files(int(file.read_text()))
        os.kill(child.pid, signal.SIGKILL)
        assert launcher.wait(child).status == -signal.SIGKILL

    def test_a_supervisor_that_adopts_them_leaves_no_zombie(self, launcher: Launcher) -> None:
        adopt_orphans()
        with launcher.started("waits") as child:
            assert not child.has_exited()
            os.kill(child.pid, signal.SIGKILL)
            assert child.reap() == -signal.SIGKILL
        pids = [path.read_text() for path in launcher.folder.glob("pid-*")]
        assert not [pid for pid in pids if Path("/proc", pid).exists()]


class TestWithoutRanks:
    @pytest.fixture(autouse=True)
    def nothing_is_left(self) -> None:
        """No rank is started that would then have to be ended."""

    @pytest.mark.usefixtures("processes")
    def test_a_soft_stop_that_comes_as_a_rank_ends(self) -> None:
        """Its pid was already waited for; the launcher does not fail for that."""
        ended = subprocess.Popen([sys.executable, "-c", ""])
        ended.wait()
        group = _Ranks()
        group.add(ended.pid)
        group.forward(signal.SIGUSR1)

    @pytest.mark.parametrize(
        ("stage", "resources", "expected"),
        [
            (
                "train",
                {"gpus": 2},
                ["worker.stages.launch_ranks", "2", "worker.stages.train.stage"],
            ),
            ("train", {"gpus": 1}, ["worker.stages.train.stage"]),
            ("train", {}, ["worker.stages.train.stage"]),
            ("prepare", {"gpus": 2}, ["worker.stages.prepare.stage"]),
        ],
    )
    def test_only_the_training_of_several_processes_has_a_launcher(
        self, stage: str, resources: dict[str, int], expected: list[str]
    ) -> None:
        spec = {**SPEC, "resources": resources}
        request = StageRequest.model_validate({**REQUEST, "stage": Stage(stage), "spec": spec})
        command = stage_command(request, Path(os.devnull))
        assert command[1:] == ["-P", "-m", *expected, os.devnull]
