"""worker.stages.launch: what the supervisor sees of a stage in several ranks."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from service.contract.events import Finished, Notice
from service.contract.failures import FailureCode
from service.contract.stages import StageRequest
from service.contract.states import Stage
from tests.stages.rank_stub import is_alive
from tests.stages.support import Ended, Running
from tests.stages.test_base import REQUEST
from worker import failures, linux
from worker.child import Child
from worker.stage_request import stage_command
from worker.stages.base import EXIT_FAILED, EXIT_FINISHED, EXIT_STOPPED

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


def command(folder: Path, behaviour: str) -> list[str]:
    spec = {**SPEC, "metadata": {"behaviour": behaviour}}
    request = {**REQUEST, "spec": spec, "workspace": str(folder), "attempt_dir": str(folder)}
    path = folder / "request.json"
    path.write_text(json.dumps(request))
    return ["-P", "-m", "worker.stages.launch", "2", "tests.stages.rank_stub", str(path)]


def start(folder: Path, behaviour: str) -> Running:
    return Running(command(folder, behaviour), folder / "log", {})


def run(folder: Path, behaviour: str) -> Ended:
    return start(folder, behaviour).wait()


def started(folder: Path, behaviour: str) -> Running:
    """With both ranks in their work."""
    running = start(folder, behaviour)
    await_ranks(folder)
    return running


def await_ranks(folder: Path) -> None:
    deadline = time.monotonic() + 60
    while len(list(folder.glob("pid-*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.3)


class TestEnd:
    def test_the_first_rank_speaks_and_has_the_result(self, tmp_path: Path) -> None:
        ended = run(tmp_path, "finishes")
        assert ended.status == EXIT_FINISHED
        assert [event.message for event in ended.events if isinstance(event, Notice)] == ["rank 0"]
        assert [type(event) for event in ended.events[1:]] == [Finished]
        assert ended.events[0].data == {"stdin": ""}  # type: ignore[union-attr]
        assert {"rank 0 speaks", "rank 1 speaks"} <= set(ended.log.splitlines())

    def test_any_ranks_failure_is_the_stages(self, tmp_path: Path) -> None:
        ended = run(tmp_path, "one fails")
        assert ended.status == EXIT_FAILED
        assert ended.failure.code is FailureCode.EMPTY_DATASET
        assert (ended.failure.message, ended.failure.details) == ("nothing here", {"n": 3})
        assert "Traceback" in ended.log

    def test_it_is_told_once(self, tmp_path: Path) -> None:
        ended = run(tmp_path, "all fail")
        assert [event.type for event in ended.events] == ["notice", "failed"]
        assert ended.failure.code is FailureCode.DISK_FULL

    def test_a_killed_rank_is_the_reason_and_not_what_the_others_feel(self, tmp_path: Path) -> None:
        ended = run(tmp_path, "one is killed")
        assert [event.type for event in ended.events] == ["notice"]
        assert failures.from_exit(ended.status).code is FailureCode.WORKER_LOST
        assert failures.from_exit(ended.status).details == {"signal": "SIGKILL"}

    def test_ranks_that_lose_each_other_are_tried_again(self, tmp_path: Path) -> None:
        assert run(tmp_path, "all lose each other").failure.code is FailureCode.WORKER_LOST


class TestSignals:
    def test_sigterm_stops_all(self, tmp_path: Path) -> None:
        running = started(tmp_path, "waits")
        running.process.send_signal(signal.SIGTERM)
        ended = running.wait()
        assert ended.status == EXIT_STOPPED
        assert [event.type for event in ended.events] == ["notice"]

    def test_sigusr1_reaches_the_ranks_and_spares_the_launcher(self, tmp_path: Path) -> None:
        running = started(tmp_path, "stops softly")
        running.process.send_signal(signal.SIGUSR1)
        ended = running.wait()
        assert ended.status == EXIT_STOPPED
        assert ended.notices == ["rank 0", "a checkpoint"]

    def test_no_rank_outlives_the_launcher(self, tmp_path: Path) -> None:
        running = started(tmp_path, "waits")
        running.process.kill()
        assert running.wait().status == -signal.SIGKILL

    def test_a_supervisor_that_adopts_them_leaves_no_zombie(self, tmp_path: Path) -> None:
        linux.adopt_orphans()
        words = [sys.executable, *command(tmp_path, "waits")]
        with Child(words, dict(os.environ), tmp_path, tmp_path / "log") as child:
            await_ranks(tmp_path)
            assert not child.has_exited()
            os.kill(child.pid, signal.SIGKILL)
            assert child.reap() == -signal.SIGKILL
        pids = [path.read_text() for path in tmp_path.glob("pid-*")]
        assert not [pid for pid in pids if Path("/proc", pid).exists()]


class TestCommand:
    @pytest.fixture(autouse=True)
    def nothing_is_left(self) -> None:
        """Nothing is started."""

    @pytest.mark.parametrize(
        ("stage", "resources", "expected"),
        [
            ("train", {"gpus": 2}, ["worker.stages.launch", "2", "worker.stages.train"]),
            ("train", {"gpus": 1}, ["worker.stages.train"]),
            ("train", {}, ["worker.stages.train"]),
            ("prepare", {"gpus": 2}, ["worker.stages.prepare"]),
        ],
    )
    def test_only_the_training_of_several_processes_has_a_launcher(
        self, stage: str, resources: dict[str, int], expected: list[str]
    ) -> None:
        spec = {**SPEC, "resources": resources}
        request = StageRequest.model_validate({**REQUEST, "stage": Stage(stage), "spec": spec})
        command = stage_command(request, Path(os.devnull))
        assert command[1:] == ["-P", "-m", *expected, os.devnull]
