"""Forked stages behave like those of a new interpreter."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import psutil
import pytest
from structlog.testing import capture_logs

from service.contract.stage.events import Finished
from service.contract.states import Stage
from service.settings import Settings
from tests.processes.support import (
    ROOT,
    STATE,
    STUB,
    begin,
    command,
    environment,
    finish,
    initial_environment,
    is_forked,
    state_of,
)
from tests.support.gpus.nvml import Gpu, Nvml
from tests.support.servers.services import wait_until
from tests.support.stages import request as stub_request
from tests.support.stages.state_stage import NATIVE
from worker.devices.gpus import gpus
from worker.processes import allocator, fork_client, spawn
from worker.processes.child import Child
from worker.processes.fork_client import ForkClient
from worker.processes.spawn import Launch, Process, Start
from worker.processes.stage_environment import stage_environment

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")


@pytest.fixture(scope="module")
def forks(processes: None) -> Iterator[ForkClient]:
    """A fork server that imports no torch: it is ready in a second."""
    server = ForkClient(environment(), modules=(STUB, STATE), imports=(STUB, STATE))
    yield server
    server.close()


def has_ended(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def spares(server: psutil.Process) -> list[psutil.Process]:
    """Processes that the server has forked, and that wait for a stage."""
    found = []
    for process in psutil.Process().children():
        with suppress(psutil.Error):  # the intermediate process ends at that moment
            if process.pid != server.pid and process.cmdline() == server.cmdline():
                found.append(process)
    return found


def zombies() -> list[psutil.Process]:
    mine = psutil.Process().children()
    return [process for process in mine if process.status() == psutil.STATUS_ZOMBIE]


@pytest.fixture(autouse=True)
def _nothing_adopted() -> None:
    """A test process that creates a fork server adopts the orphans of all later tests."""
    for process in zombies():
        process.wait()


class TestLikeANewInterpreter:
    @pytest.mark.parametrize(
        ("behaviour", "status"),
        [
            ("finish", 0),
            ("fail:unreadable_row", 1),
            ("exit:3", 3),
            ("segfault", -signal.SIGSEGV),
            ("kill", -signal.SIGKILL),
        ],
    )
    def test_ends(self, forks: ForkClient, tmp_path: Path, behaviour: str, status: int) -> None:
        warnings, logs = [], []
        for start in (spawn.new_interpreter, forks.start):
            child = begin(tmp_path, behaviour, start)
            assert is_forked(child, forks) if start == forks.start else True
            ended, events = finish(child)
            assert ended == status
            warnings.append(events)
            logs.append((tmp_path / "log").read_text().splitlines())
            (tmp_path / "log").unlink()
        assert warnings[0] == warnings[1]
        # The frames below `main` are others.
        assert (logs[0][:1], logs[0][-1:]) == (logs[1][:1], logs[1][-1:])

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
    def test_is_stopped(self, forks: ForkClient, tmp_path: Path, number: signal.Signals) -> None:
        with begin(tmp_path, "hang", forks.start) as child:
            wait_until((tmp_path / "environment").exists, 10, "the stage")
            assert is_forked(child, forks)
            {signal.SIGTERM: child.terminate, signal.SIGKILL: child.kill}[number]()
            wait_until(child.has_exited, 10, "its end")
            assert child.reap() == (143 if number is signal.SIGTERM else -signal.SIGKILL)
        server = forks.server_pid
        assert finish(begin(tmp_path / "next", "finish", forks.start))[0] == 0
        assert forks.server_pid == server

    def test_process(self, forks: ForkClient, tmp_path: Path) -> None:
        """Session, signals, descriptors, folder, arguments, environment."""
        states = []
        for start in (spawn.new_interpreter, forks.start, forks.start):
            child = begin(tmp_path, "light", start, STATE, HF_TOKEN="hf_secret")
            assert finish(child)[0] == 0
            states.append(state_of(tmp_path))
        drawn = [state.pop("drawn") for state in states]
        assert all(len(set(numbers)) == 3 for numbers in zip(*drawn, strict=True))
        assert states[0] == states[1] == states[2]
        assert states[1]["environment"].items() >= environment(HF_TOKEN="hf_secret").items()
        assert states[1]["cwd"] == str(tmp_path)

    def test_lets_others_go_first(self, forks: ForkClient, tmp_path: Path) -> None:
        """Its own value counts within its session; where the kernel groups processes by session,
        that of the group counts for the rest."""
        for number, start in enumerate((spawn.new_interpreter, forks.start)):

            def nicely(wanted: Launch, start: Start = start) -> Process:
                return start(replace(wanted, nice=7))

            with begin(tmp_path / str(number), "hang", nicely) as child:
                assert is_forked(child, forks) == (start == forks.start)
                expected = min(19, os.nice(0) + 7)
                assert psutil.Process(child.pid).nice() == expected
                group = Path(f"/proc/{child.pid}/autogroup")
                if group.exists():
                    assert group.read_text().endswith(f" nice {expected}\n")

    def test_secrets_are_not_in_the_environment_that_others_can_read(
        self, forks: ForkClient, tmp_path: Path
    ) -> None:
        for number, start in enumerate((spawn.new_interpreter, forks.start)):
            folder = tmp_path / str(number)
            with begin(folder, "hang", start, HF_TOKEN="hf_secret") as child:
                wait_until((folder / "environment").exists, 10, "the stage")
                assert is_forked(child, forks) == (start == forks.start)
                shown = initial_environment(child.pid)
                line = Path(f"/proc/{child.pid}/cmdline").read_bytes()
                owner = Path(f"/proc/{child.pid}/environ").stat().st_uid
            assert "HF_TOKEN" in (folder / "environment").read_text().split()
            assert b"hf_secret" not in shown + line
            # The kernel gives what others may not read to root.
            assert owner == 0

    def test_ps_shows_the_stages_command(self, forks: ForkClient, tmp_path: Path) -> None:
        with begin(tmp_path, "hang", forks.start) as child:
            wait_until((tmp_path / "environment").exists, 10, "the stage")
            process = psutil.Process(child.pid)
            shown = [word for word in process.cmdline() if word]
            assert shown == command(tmp_path / "request.json")
            assert process.ppid() == os.getpid()

    def test_grandchildren_end_with_it(self, forks: ForkClient, tmp_path: Path) -> None:
        child = begin(tmp_path, "fork", forks.start)
        with child:
            wait_until(child.has_exited, 10, "the stage")
        seconds = (tmp_path / "grandchild").read_text()
        assert not [each for each in psutil.process_iter(["cmdline"]) if seconds in _words(each)]
        assert zombies() == []


def _words(process: psutil.Process) -> list[str]:
    words: list[str] = process.info["cmdline"] or []
    return words


@pytest.mark.usefixtures("processes")
class TestOfAWorker:
    """What a worker sets for the libraries of stages, where its operator sets nothing or another
    value: in a new interpreter, in the server (libgomp reads it when torch is imported) and in what
    is forked of it (oneDNN reads it at the first product)."""

    @pytest.mark.parametrize(
        "own", [{}, {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64", "GOMP_SPINCOUNT": "300000"}]
    )
    def test_settings_of_libraries(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: dict[str, str]
    ) -> None:
        for name in NATIVE:
            monkeypatch.delenv(name, raising=False)
        for name, value in own.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        settings = Settings(home=tmp_path).model_copy(update={"malloc": allocator.KEEPING})
        variables = stage_environment(settings, Stage.TRAIN)
        expected = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "256", "GOMP_SPINCOUNT": "10000"} | own
        with closing(ForkClient(variables, modules=(STATE,), imports=(STATE,))) as forks:
            for start in (spawn.new_interpreter, forks.start):
                request = stub_request.write(tmp_path, "light")
                words = command(request, STATE)
                child = Child(words, variables, tmp_path, tmp_path / "log", start=start)
                assert is_forked(child, forks) == (start == forks.start)
                assert finish(child)[0] == 0
                state = state_of(tmp_path)
                assert expected.items() <= state["environment"].items()
                tunables = state["getenv"].pop("GLIBC_TUNABLES")
                assert state["getenv"] == expected
                assert tunables == variables["GLIBC_TUNABLES"]
            known = Path(f"/proc/{forks.server_pid}/environ").read_text().split("\0")
            assert {f"{name}={value}" for name, value in expected.items()} <= set(known)
            # The C library divides the value in its place.
            assert "GLIBC_TUNABLES=" + tunables.partition(":")[0] in known


@pytest.mark.usefixtures("processes")
class TestGpus:
    def test_a_stage_sees_those_that_it_was_given(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A stage sees only the GPUs of its request, and none without any; the server sees none."""
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b,GPU-c")
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        settings = Settings(home=tmp_path)
        # As `make` does, without a job.
        lasting = stage_environment(settings, Stage.TRAIN)
        with closing(ForkClient(lasting, modules=(STATE,), imports=(STATE,))) as forks:
            starts = (spawn.new_interpreter, forks.start)
            for given, start in product(((), ("GPU-b", "GPU-a")), starts):
                variables = stage_environment(settings, Stage.TRAIN, given)
                expected = {
                    "CUDA_VISIBLE_DEVICES": ",".join(given),
                    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
                    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
                }
                words = command(stub_request.write(tmp_path, "light"), STATE)
                child = Child(words, variables, tmp_path, tmp_path / "log", start=start)
                assert is_forked(child, forks) == (start == forks.start)
                assert finish(child)[0] == 0
                state = state_of(tmp_path)
                assert state["cuda"] == expected
                assert expected.items() <= state["environment"].items()
            known = Path(f"/proc/{forks.server_pid}/environ").read_text().split("\0")
            assert "CUDA_VISIBLE_DEVICES=" in known


class TestServer:
    def test_outlives_crashes_and_leaks_nothing(self, forks: ForkClient, tmp_path: Path) -> None:
        finish(begin(tmp_path / "first", "finish", forks.start))
        server = forks.server_pid
        descriptors = len(list(Path("/proc/self/fd").iterdir()))
        for number in range(50):
            behaviour = ("finish", "segfault", "kill", "exit:1", "fork")[number % 5]
            with begin(tmp_path / str(number), behaviour, forks.start) as child:
                wait_until(child.has_exited, 10, "the stage")
        assert forks.server_pid == server
        assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
        assert zombies() == []

    @pytest.mark.usefixtures("processes")
    def test_holds_no_secret(self, tmp_path: Path) -> None:
        with closing(ForkClient(environment(), modules=(STUB,), imports=(STUB,))) as forks:
            finish(begin(tmp_path, "finish", forks.start, HF_TOKEN="hf_secret"))
            known = Path(f"/proc/{forks.server_pid}/environ").read_bytes()
        assert "HF_TOKEN" in (tmp_path / "environment").read_text()
        assert b"hf_secret" not in known
        assert b"PYTHONPATH" in known

    def test_a_stage_outlives_its_server(self, forks: ForkClient, tmp_path: Path) -> None:
        with begin(tmp_path / "first", "stubborn", forks.start) as child:
            wait_until((tmp_path / "first" / "ready").exists, 10, "the stage")
            server = forks.server_pid
            assert server is not None
            os.kill(server, signal.SIGKILL)
            wait_until(lambda: forks.server_pid is None, 10, "the server's end")
            child.stop_softly()
            wait_until((tmp_path / "first" / "asked").exists, 10, "a sign of life")
            child.terminate()
            wait_until(child.has_exited, 10, "its end")
            assert child.reap() == 143
        following = begin(tmp_path / "second", "finish", forks.start)
        assert is_forked(following, forks)
        assert finish(following)[0] == 0
        assert forks.server_pid != server

    @pytest.mark.usefixtures("processes")
    @pytest.mark.parametrize(
        "moments", [(0, 1, 4), pytest.param(tuple(range(8)), marks=pytest.mark.heavy)]
    )
    def test_killed_at_any_moment_leaves_nothing(
        self, tmp_path: Path, moments: tuple[int, ...]
    ) -> None:
        """Also in the middle of a fork, when the intermediate process is adopted, too."""
        with closing(ForkClient(environment(), modules=(STUB,), imports=(STUB,))) as forks:
            for number in moments:
                finish(begin(tmp_path / str(number), "finish", forks.start))
                server = forks.server_pid
                assert server is not None
                time.sleep(number / 1000)
                os.kill(server, signal.SIGKILL)
                wait_until(lambda: forks.server_pid is None, 10, "the server's end")
        assert zombies() == []

    def test_a_waiting_process_that_was_killed(self, forks: ForkClient, tmp_path: Path) -> None:
        finish(begin(tmp_path / "first", "finish", forks.start))
        server = psutil.Process(forks.server_pid)
        wait_until(lambda: len(spares(server)) == 1, 10, "the process that waits")
        [spare] = spares(server)
        spare.kill()
        assert finish(begin(tmp_path / "second", "finish", forks.start))[0] == 0
        assert finish(begin(tmp_path / "third", "finish", forks.start))[0] == 0
        assert has_ended(spare.pid)

    @pytest.mark.usefixtures("processes")
    def test_all_end_with_the_supervisor(self, tmp_path: Path) -> None:
        request = stub_request.write(tmp_path, "deaf")
        program = f"""
            import os, time
            from pathlib import Path
            from tests.processes import test_fork_client as t
            from worker.processes.child import Child
            forks = t.ForkClient(t.environment(), modules=(t.STUB,), imports=(t.STUB,))
            folder = Path({str(tmp_path)!r})
            child = Child(t.command(folder / "request.json"), t.environment(), folder,
                          folder / "log", start=forks.start)
            print(child.pid, forks.server_pid, flush=True)
            time.sleep(600)
        """
        assert request.exists()
        with subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        ) as supervisor:
            assert supervisor.stdout is not None
            pids = [int(word) for word in supervisor.stdout.readline().split()]
            try:
                wait_until((tmp_path / "environment").exists, 20, "the stage")
                children = partial(psutil.Process(supervisor.pid).children, recursive=True)
                wait_until(lambda: len(children()) >= 3, 20, "stage, server and the one that waits")
                family = children()
            finally:
                supervisor.kill()
        wait_until(lambda: all(has_ended(p.pid) for p in family), 5, "their end")
        assert {process.pid for process in family} >= set(pids)

    @pytest.mark.usefixtures("processes")
    def test_is_replaced_when_it_grows(self, tmp_path: Path) -> None:
        with closing(
            ForkClient(environment(), modules=(STUB,), imports=(STUB,), growth_bytes=-1)
        ) as forks:
            finish(begin(tmp_path / "first", "finish", forks.start))
            first = forks.server_pid
            assert finish(begin(tmp_path / "second", "finish", forks.start))[0] == 0
            assert forks.server_pid not in (None, first)

    def test_is_replaced_when_the_code_is_another(
        self, forks: ForkClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        finish(begin(tmp_path / "first", "finish", forks.start))
        first = forks.server_pid
        forks.ensure_server()
        assert forks.server_pid == first
        monkeypatch.setattr(fork_client, "_newest_source", lambda: (1, 1))
        forks.ensure_server()
        assert forks.server_pid not in (None, first)


class TestFallsBack:
    @pytest.mark.usefixtures("processes")
    @pytest.mark.parametrize(
        ("imported", "attempts", "reason"),
        [
            ("tests.support.stages.threaded", 1, "the fork server has threads: busy"),
            ("tests.worker.no_such_module", 3, "the fork server has ended"),
        ],
    )
    def test_for_good_when_the_server_cannot_be(
        self, tmp_path: Path, imported: str, attempts: int, reason: str
    ) -> None:
        with closing(ForkClient(environment(), modules=(STUB,), imports=(imported,))) as forks:
            with capture_logs() as logs:
                for number in range(attempts + 1):
                    folder = tmp_path / str(number)
                    assert finish(begin(folder, "finish", forks.start))[0] == 0
            warnings = [line for line in logs if line["log_level"] == "warning"]
            assert [line["reason"] for line in warnings] == [reason] * attempts
            assert [line["for_good"] for line in warnings] == [False] * (attempts - 1) + [True]
            forks.ensure_server()
            assert forks.server_pid is None

    @pytest.mark.usefixtures("processes")
    @pytest.mark.parametrize("how", ["started", "counted"])
    def test_for_good_when_the_server_has_started_cuda(self, tmp_path: Path, how: str) -> None:
        """Whether torch shows it in the server, or only in forked processes."""
        imports = ("tests.support.stages.cuda",)
        with closing(
            ForkClient(environment(STUB_CUDA=how), modules=(STUB,), imports=imports)
        ) as forks:
            with capture_logs() as logs:
                for number in range(2):
                    child = begin(tmp_path / str(number), "finish", forks.start, STUB_CUDA=how)
                    assert finish(child)[0] == 0
            warnings = [line for line in logs if line["log_level"] == "warning"]
            assert [(line["reason"], line["for_good"]) for line in warnings] == [
                ("the fork server has started CUDA", True)
            ]
            assert zombies() == []

    def test_once_when_the_server_does_not_answer(
        self, forks: ForkClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        finish(begin(tmp_path / "first", "finish", forks.start))
        monkeypatch.setattr(fork_client, "_FORK_SECONDS", 1.0)
        finish(begin(tmp_path / "second", "finish", forks.start))
        server = forks.server_pid
        assert server is not None
        waiting = psutil.Process(server)
        wait_until(lambda: len(spares(waiting)) == 1, 10, "the process that waits")
        os.kill(server, signal.SIGSTOP)
        # The waiting process is used; the stopped server forks no other.
        assert finish(begin(tmp_path / "third", "finish", forks.start))[0] == 0
        with capture_logs() as logs:
            assert finish(begin(tmp_path / "fourth", "finish", forks.start))[0] == 0
        assert [line["reason"] for line in logs if "reason" in line] == [
            "the fork server does not answer"
        ]
        assert has_ended(server)

    @pytest.mark.parametrize("more", [{"OMP_NUM_THREADS": "2"}, {"LD_PRELOAD": ""}])
    def test_in_another_environment(
        self, forks: ForkClient, tmp_path: Path, more: dict[str, str]
    ) -> None:
        forks.ensure_server()
        with capture_logs() as logs:
            child = begin(tmp_path, "finish", forks.start, **more)
        assert not is_forked(child, forks)
        [name] = more
        assert [line["reason"] for line in logs] == [f"the environment differs: {name}"]
        assert finish(child)[0] == 0

    def test_with_another_command(self, forks: ForkClient, tmp_path: Path) -> None:
        forks.ensure_server()
        request = stub_request.write(tmp_path)
        words = [sys.executable, "-m", STUB, str(request)]
        child = Child(words, environment(), tmp_path, tmp_path / "log", start=forks.start)
        assert not is_forked(child, forks)
        status, events = finish(child)
        assert status == 0
        assert isinstance(events[-1], Finished)


class TestMake:
    def test_settings_decide(self, tmp_path: Path) -> None:
        assert fork_client.make(Settings(home=tmp_path, warm_start=False), []) is None
        made = fork_client.make(Settings(home=tmp_path), [])
        assert made is not None
        assert made.server_pid is None  # nothing is started before `ensure_server`

    @pytest.mark.parametrize(
        ("gpu", "imports"),
        [(Gpu("GPU-a"), fork_client.IMPORTS_WITH_GPU), (Gpu("GPU-a").cut(Gpu("MIG-1")), None)],
    )
    def test_gpus_decide(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        gpu: Gpu,
        imports: tuple[str, ...] | None,
    ) -> None:
        """On a MIG instance nothing is forked."""
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        Nvml([gpu]).install(monkeypatch)
        made = fork_client.make(Settings(home=tmp_path), gpus())
        assert (made and made._imports) == imports
