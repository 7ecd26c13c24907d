import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from service.cli.stack import processes
from service.cli.stack.linux import StopEvent
from service.cli.stack.orphans import Mark
from service.cli.stack.processes import Part, PartFailedError, ProcessManager
from tests.support import unprivileged
from tests.support.servers.services import wait_until

SLEEP = "import time; time.sleep(600)"
Sleeper = Callable[[Mark], subprocess.Popen[bytes]]
# Who is killed, and the status: of two at once it is that of whoever was faster.
ORDERS = [
    ("outer", -signal.SIGKILL),
    ("manager", 128 + signal.SIGKILL),
    ("parts", 0),
    ("outer manager", None),
    pytest.param("manager outer", None, marks=pytest.mark.heavy),
    pytest.param("outer parts", None, marks=pytest.mark.heavy),
    pytest.param("manager parts", None, marks=pytest.mark.heavy),
    ("parts manager outer", None),
    ("outer manager parts", None),
]


def make_part(tmp_path: Path, name: str, code: str, **changes: object) -> Part:
    arguments = {
        "name": name,
        "argv": [sys.executable, "-c", code],
        "env": dict(os.environ),
        "ready": lambda pid: f"ready as {pid}",
        "log": tmp_path / f"{name}.log",
        "grace_seconds": 5.0,
        **changes,
    }
    return Part(**arguments)  # type: ignore[arg-type]


class Watched:
    """A manager that runs in this thread until `stop` is set; its messages are kept."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.stop = StopEvent()
        self.manager = ProcessManager(self.messages.append, self.stop)

    def run_until(self, check: Callable[[], bool], seconds: float = 20) -> None:
        """Run the manager; another thread sets `stop` once `check()` holds."""

        def end() -> None:
            try:
                wait_until(check, seconds, "the state waited for")
            finally:
                self.stop.set()

        waiter = threading.Thread(target=end)
        waiter.start()
        self.manager.run()
        waiter.join()


@pytest.fixture
def watched(processes: None) -> Watched:
    return Watched()


class TestStart:
    def test_reports_once_that_a_part_is_ready(self, watched: Watched, tmp_path: Path) -> None:
        assert watched.manager.start([make_part(tmp_path, "a", SLEEP)])
        watched.manager.stop()
        assert [line.split(" as ")[0] for line in watched.messages] == ["a ready", "a stopped"]

    def test_a_part_that_ends_first_is_an_error_with_the_end_of_its_log(
        self, watched: Watched, tmp_path: Path
    ) -> None:
        part = make_part(
            tmp_path, "a", "print('port taken'); raise SystemExit(3)", ready=lambda _: None
        )
        with pytest.raises(PartFailedError, match=r"a ended with status 3: port taken\n.*a\.log"):
            watched.manager.start([part])

    def test_a_part_that_stays_silent_is_an_error(self, watched: Watched, tmp_path: Path) -> None:
        part = make_part(tmp_path, "a", SLEEP, ready=lambda _: None, ready_seconds=0.3)
        with pytest.raises(PartFailedError, match=r"did not answer within 0\.3 s"):
            watched.manager.start([part])
        watched.manager.stop()

    def test_a_stop_during_the_start_ends_the_wait(self, watched: Watched, tmp_path: Path) -> None:
        watched.stop.set()
        assert not watched.manager.start([make_part(tmp_path, "a", SLEEP, ready=lambda _: None)])
        watched.manager.stop()
        assert watched.messages == ["a stopped"]


class TestRestart:
    def test_a_part_that_was_killed_comes_back_with_a_message(
        self, watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(processes, "FIRST_BACKOFF_SECONDS", 0.2)
        watched.manager.start([make_part(tmp_path, "a", SLEEP)])
        os.kill(int(watched.messages[0].split()[-1]), signal.SIGKILL)
        watched.run_until(lambda: len(watched.messages) == 3)
        watched.manager.stop()
        assert "a was ended by SIGKILL; restart in 0.2 s" in watched.messages[1]
        assert watched.messages[2].startswith("a ready as ")
        assert watched.messages[2] != watched.messages[0]

    def test_the_waits_double(
        self, watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(processes, "FIRST_BACKOFF_SECONDS", 0.1)
        monkeypatch.setattr(processes, "LONGEST_BACKOFF_SECONDS", 0.4)
        started = tmp_path / "started"
        # Serves the first time, and then ends at once each time.
        code = (
            f"import pathlib, time; p = pathlib.Path({str(started)!r})\n"
            "if p.exists(): raise SystemExit(7)\np.touch(); time.sleep(0.5)"
        )
        watched.manager.start([make_part(tmp_path, "a", code)])
        watched.run_until(lambda: len(_waits(watched.messages)) == 5)
        watched.manager.stop()
        assert _waits(watched.messages) == ["0.1", "0.2", "0.4", "0.4", "0.4"]


def _waits(messages: list[str]) -> list[str]:
    return [
        line.split("restart in ")[1].split(" s")[0] for line in messages if "restart in" in line
    ]


class TestStop:
    def test_the_last_tier_is_stopped_first(self, watched: Watched, tmp_path: Path) -> None:
        watched.manager.start([make_part(tmp_path, "broker", SLEEP)])
        watched.manager.start([make_part(tmp_path, "worker", SLEEP)])
        watched.manager.stop()
        assert watched.messages[2:] == ["worker stopped", "broker stopped"]

    def test_a_second_request_signals_the_parts_again(
        self, watched: Watched, tmp_path: Path
    ) -> None:
        """A slow part, like a worker with a training, ends at the second signal."""
        code = (
            "import signal, sys, time\n"
            "signals = []\n"
            "signal.signal(signal.SIGTERM, lambda *_: signals.append(1))\n"
            "print('ready', flush=True)\n"
            "while len(signals) < 2: time.sleep(0.01)\n"
        )
        log = tmp_path / "slow.log"
        ready: Callable[[int], str | None] = lambda _: log.read_text().strip() or None  # noqa: E731
        watched.manager.start([make_part(tmp_path, "slow", code, ready=ready, grace_seconds=60)])
        watched.stop.ask()
        again = threading.Timer(0.5, watched.stop.ask)
        again.start()
        watched.manager.stop()
        assert watched.messages == ["slow ready", "slow stopped"]

    def test_a_part_that_ignores_sigterm_is_killed_with_its_children(
        self, watched: Watched, tmp_path: Path
    ) -> None:
        child = tmp_path / "child"
        code = (
            "import pathlib, signal, subprocess, sys, time\n"
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            f"p = subprocess.Popen([sys.executable, '-c', {SLEEP!r}])\n"
            f"pathlib.Path({str(child)!r}).write_text(str(p.pid)); time.sleep(600)"
        )
        part = make_part(
            tmp_path,
            "a",
            code,
            ready=lambda _: "ready" if child.exists() and child.read_text() else None,
            grace_seconds=0.3,
        )
        watched.manager.start([part])
        watched.manager.stop()
        assert watched.messages[-1] == "a killed after 0.3 s"
        wait_until(lambda: _has_ended(int(child.read_text())), 5, "the end of the child")


def _has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


# A stack of two sleepers, each with a child; the child of `b` has a session of its own, as a
# worker's stage has. Writes its manager's process id to argv[1]/up when it runs.
GUARDED = """
import os, subprocess, sys, time
from pathlib import Path
from service.cli.stack.orphans import Mark
from service.cli.stack.processes import Part, ProcessManager
from service.cli.stack.linux import run_guarded

folder = Path(sys.argv[1])
mark_of_stack = Mark(folder)
nested = (
    "import pathlib, subprocess, sys, time;"
    "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'],"
    " start_new_session=bool(int(sys.argv[2])));"
    "pathlib.Path(sys.argv[1]).write_text(str(p.pid)); time.sleep(600)"
)

def part(name, detached):
    mark = folder / (name + ".child")
    return Part(
        name=name,
        argv=[sys.executable, "-c", nested, str(mark), detached],
        env={**os.environ, **mark_of_stack.environ()},
        ready=lambda pid: "ready" if mark.exists() and mark.read_text() else None,
        log=folder / (name + ".log"),
        grace_seconds=5,
    )

def main(stop):
    manager = ProcessManager(lambda message: print(message, flush=True), stop)
    try:
        if manager.start([part("a", "0"), part("b", sys.argv[2])]):
            (folder / "up").write_text(str(os.getpid()))
            manager.run()
        return 0
    finally:
        manager.stop()

sys.exit(run_guarded(main, clean_up=mark_of_stack.end_all))
"""


class Guarded:
    """The script above as a process, and every process below it."""

    def __init__(self, tmp_path: Path, detached: bool) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", GUARDED, str(tmp_path), str(int(detached))],
            stdout=subprocess.DEVNULL,
        )
        mark = tmp_path / "up"
        wait_until(lambda: mark.exists() and bool(mark.read_text()), 30, "the guarded stack")
        self.manager = int(mark.read_text())
        me = psutil.Process(self.process.pid)
        self.family = me.children(recursive=True)
        (self.watch,) = (one.pid for one in me.children() if one.pid != self.manager)
        self.parts = [one.pid for one in psutil.Process(self.manager).children()]

    def wait_for_family(self) -> int:
        status = self.process.wait(20)
        wait_until(
            lambda: all(_has_ended(member.pid) for member in self.family), 20, "the last end"
        )
        return status


@pytest.mark.usefixtures("processes")
class TestRunGuarded:
    def test_sigterm_stops_all_and_the_status_is_0(self, tmp_path: Path) -> None:
        stack = Guarded(tmp_path, detached=True)
        assert len(stack.family) == 6  # the last watch, the manager, two parts, a child of each
        stack.process.terminate()
        assert stack.wait_for_family() == 0

    def test_ctrl_c_stops_all_and_the_status_is_0(self, tmp_path: Path) -> None:
        stack = Guarded(tmp_path, detached=False)
        stack.process.send_signal(signal.SIGINT)
        assert stack.wait_for_family() == 0

    @pytest.mark.parametrize(("order", "status"), ORDERS)
    def test_nothing_is_left_whoever_is_killed(
        self, tmp_path: Path, order: str, status: int | None
    ) -> None:
        """No death signal reaches the children of the parts."""
        stack = Guarded(tmp_path, detached=True)
        victims = {"outer": [stack.process.pid], "manager": [stack.manager], "parts": stack.parts}
        for name in order.split():
            for pid in victims[name]:
                with suppress(ProcessLookupError):  # ended by the death of the one before
                    os.kill(pid, signal.SIGKILL)
        if order == "parts":
            stack.process.terminate()
        ended = stack.wait_for_family()
        assert status in (None, ended)

    def test_the_last_watch_is_started_again(self, tmp_path: Path) -> None:
        stack = Guarded(tmp_path, detached=True)
        os.kill(stack.watch, signal.SIGKILL)
        outer = psutil.Process(stack.process.pid)

        def watch() -> set[int]:
            return {one.pid for one in outer.children()} - {stack.watch, stack.manager}

        wait_until(lambda: len(watch()) == 1, 10, "the new one")
        (new,) = watch()
        for pid in (stack.process.pid, stack.manager):
            os.kill(pid, signal.SIGKILL)
        stack.wait_for_family()
        wait_until(lambda: _has_ended(new), 10, "its end")

    def test_the_childs_status_is_passed_on(self) -> None:
        code = "import sys; from service.cli.stack.linux import run_guarded\n"
        code += "sys.exit(run_guarded(lambda stop: 7, lambda: None))"
        assert subprocess.run([sys.executable, "-c", code], timeout=20, check=False).returncode == 7


class TestMark:
    @pytest.fixture
    def sleeper(self, processes: None) -> Iterator[Sleeper]:
        started = []

        def start(mark: Mark) -> subprocess.Popen[bytes]:
            environment = {**os.environ, **mark.environ()}
            process = subprocess.Popen([sys.executable, "-c", SLEEP], env=environment)
            started.append(process)
            return process

        yield start
        for process in started:
            process.kill()
            process.wait()

    def test_its_own_run_alone(self, sleeper: Sleeper, tmp_path: Path) -> None:
        mark, other = Mark(tmp_path), Mark(tmp_path)
        own, spared = sleeper(mark), sleeper(other)
        mark.end_all()
        assert own.wait(5) == -signal.SIGKILL
        assert spared.poll() is None

    @pytest.mark.usefixtures("processes")
    def test_of_a_process_whose_environment_is_closed(self, tmp_path: Path) -> None:
        """Without privileges its environment cannot be read."""
        refuse = "from service.system import prctl; prctl.forbid_inspection()"
        closed = f"{refuse}; print(flush=True); {SLEEP}"
        program = (
            "import subprocess, sys, time\n"
            "from pathlib import Path\n"
            "from service.cli.stack.orphans import Mark\n"
            f"mark = Mark(Path({str(tmp_path)!r}))\n"
            f"words = [sys.executable, *mark.options(), '-c', {closed!r}]\n"
            "process = subprocess.Popen(words, stdout=subprocess.PIPE)\n"
            "process.stdout.read(1)\n"
            "try:\n"
            "    open(f'/proc/{process.pid}/environ').read()\n"
            "except PermissionError:\n"
            "    print('closed')\n"
            "mark.end_all()\n"
            "print(process.wait())\n"
        )
        command = [*unprivileged.prefix(), sys.executable, "-c", program]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["closed", str(-signal.SIGKILL)]

    def test_earlier_runs_of_the_home_alone(self, sleeper: Sleeper, tmp_path: Path) -> None:
        mark = Mark(tmp_path)
        earlier, own, elsewhere = (
            sleeper(one) for one in (Mark(tmp_path), mark, Mark(tmp_path / "other"))
        )
        mark.end_earlier_ones()
        assert earlier.wait(5) == -signal.SIGKILL
        assert own.poll() is None
        assert elsewhere.poll() is None
