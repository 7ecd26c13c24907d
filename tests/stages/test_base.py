import json
import os
import signal
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from service.contract.failures import FailureCode
from service.contract.stage.events import STAGE_EVENT, Finished, Notice, Progress
from tests.stages.support import REQUEST, EndedStage, Forks, Running
from worker.stages.base import MAX_EVENT_BYTES, Channel, EventTooLargeError

MODULE = "tests.stages.body_stage"


def write(folder: Path, body: str, request: str | None = None) -> Path:
    """The request of a stage whose main is `body`; that has `request` and `channel`."""
    (folder / "body.py").write_text(textwrap.dedent(body))
    path = folder / "request.json"
    path.write_text(json.dumps(REQUEST) if request is None else request)
    return path


def run(folder: Path, body: str, request: str | None = None) -> EndedStage:
    return Forks(MODULE, folder / "hub").run(write(folder, body, request))


@pytest.mark.usefixtures("processes")
class TestRunStage:
    def test_ends_with_its_result(self, tmp_path: Path) -> None:
        ended = run(tmp_path, "channel.send(Progress(step=1, of=2))")
        assert ended.status == 0
        assert isinstance(ended.events[0], Progress)
        assert isinstance(ended.events[1], Finished)
        assert ended.result == {
            "mlflow_artifact_uri": None,
            "hub_url": None,
            "hub_commit": None,
        }

    def test_a_stages_own_failure_arrives_as_it_is(self, tmp_path: Path) -> None:
        ended = run(tmp_path, "raise StageError(FailureCode.EMPTY_DATASET, 'nothing', n=3)")
        assert ended.status == 1
        assert ended.failure.code is FailureCode.EMPTY_DATASET
        assert (ended.failure.message, ended.failure.details) == ("nothing", {"n": 3})

    def test_the_trace_is_in_the_log_and_not_in_the_event(self, tmp_path: Path) -> None:
        ended = run(tmp_path, "raise KeyError('x')")
        assert ended.failure.code is FailureCode.INTERNAL
        assert "Traceback" in ended.log
        assert "Traceback" not in ended.failure.message

    @pytest.mark.parametrize("body", ["sys.exit(0)", "raise KeyboardInterrupt"])
    def test_leaving_by_other_ways_is_a_failure_too(self, tmp_path: Path, body: str) -> None:
        ended = run(tmp_path, body)
        assert (ended.status, ended.failure.code) == (1, FailureCode.INTERNAL)

    def test_an_unreadable_request_is_a_failure(self, tmp_path: Path) -> None:
        assert run(tmp_path, "pass", request="{").failure.code is FailureCode.INTERNAL

    def test_secrets_are_masked_and_long_messages_cut(self, tmp_path: Path) -> None:
        token = "hf_" + "a" * 34
        ended = run(
            tmp_path,
            f"raise StageError(FailureCode.NETWORK, '{token} ' + 'x' * 10**7, many='y' * 10**7)",
        )
        assert ended.failure.message.startswith("*** xxx")
        assert len(ended.failure.message) == 4000
        assert ended.failure.details == {}

    def test_a_running_thread_does_not_delay_the_end(self, tmp_path: Path) -> None:
        body = "import threading; threading.Thread(target=time.sleep, args=(100,)).start()"
        assert run(tmp_path, body).status == 0

    def test_a_full_disk_under_the_log_does_not_keep_the_failure_back(self, tmp_path: Path) -> None:
        ended = run(
            tmp_path,
            """
            full = os.open("/dev/full", os.O_WRONLY)
            os.dup2(full, 1); os.dup2(full, 2)
            print("x" * 10000)
            raise OSError(28, "No space left on device")
            """,
        )
        assert (ended.status, ended.failure.code) == (1, FailureCode.DISK_FULL)


@pytest.mark.usefixtures("processes")
class TestStop:
    def test_sigterm_unwinds_and_exits_without_an_event(self, tmp_path: Path) -> None:
        forks = Forks(MODULE, tmp_path / "hub")
        request = write(
            tmp_path,
            """
            try:
                channel.send(Progress(step=0, of=0))
                time.sleep(100)
            finally:
                print("cleaned up")
            """,
        )
        stage = forks.start(request)
        assert stage.read(60)
        os.kill(stage.pid, signal.SIGTERM)
        ended = forks.wait(stage, request)
        assert (ended.status, ended.events) == (143, [])
        assert "cleaned up" in ended.log

    def test_sigterm_while_a_failure_is_reported(self, tmp_path: Path) -> None:
        ended = run(
            tmp_path,
            """
            class Slow(Exception):
                def __str__(self):
                    os.kill(os.getpid(), signal.SIGTERM)
                    time.sleep(100)
            raise Slow
            """,
        )
        assert (ended.status, ended.events) == (143, [])

    def test_it_ends_without_a_reader_of_its_events(self, tmp_path: Path) -> None:
        request = write(
            tmp_path,
            """
            while True:
                channel.send(Progress(step=0, of=0))
                time.sleep(0.01)
            """,
        )
        running = Running(["-m", MODULE, str(request)], tmp_path / "log", {})
        running.events.close()
        assert running.process.wait(30) == 143

    def test_it_dies_with_its_supervisor(self, tmp_path: Path) -> None:
        """The pipe stays open in this test, so only the parent's death can end the stage."""
        inner = tmp_path / "inner.py"
        request = tmp_path / "request.json"
        request.write_text(json.dumps(REQUEST))
        inner.write_text(
            "import time\n"
            "from worker.stages.base import *\n"
            "from service.contract.stage.events import *\n"
            "def main(request, channel):\n"
            "    channel.send(Notice(message='here'))\n"
            "    time.sleep(100)\n"
            "run_stage(main)\n"
        )
        supervisor = (
            "import os, subprocess, sys, time\n"
            "fd = int(os.environ['FINETUNE_EVENT_FD'])\n"
            "subprocess.Popen([sys.executable, *sys.argv[1:]], pass_fds=(fd,))\n"
            "time.sleep(100)\n"
        )
        running = Running(
            ["-c", supervisor, str(inner), str(request)],
            tmp_path / "log",
            {"PYTHONPATH": str(Path.cwd())},
        )
        assert b"notice" in running.events.readline()
        running.process.kill()
        assert running.wait().events == []  # the pipe has ended, so its last holder has


class TestChannel:
    def test_lines_of_many_threads_stay_whole(self) -> None:
        reader, writer = os.pipe()
        channel = Channel(writer)
        message = "x" * 20_000  # more than a pipe takes at once
        with ThreadPoolExecutor(20) as threads, os.fdopen(reader, "rb") as stream:
            for _ in range(20):
                threads.submit(channel.send, Notice(message=message))
            lines = [stream.readline() for _ in range(20)]
        os.close(writer)
        assert {STAGE_EVENT.validate_json(line).type for line in lines} == {"notice"}

    def test_an_event_beyond_all_measure_is_refused(self) -> None:
        reader, writer = os.pipe()
        with pytest.raises(EventTooLargeError):
            Channel(writer).send(Notice(message="x" * MAX_EVENT_BYTES))
        os.close(reader)
        os.close(writer)

    def test_a_not_finite_loss_survives(self) -> None:
        reader, writer = os.pipe()
        Channel(writer).send(Progress(step=1, of=1, loss=float("nan")))
        os.close(writer)
        with os.fdopen(reader, "rb") as stream:
            event = STAGE_EVENT.validate_json(stream.readline())
        assert isinstance(event, Progress)
        assert event.loss is not None
        assert event.loss != event.loss
