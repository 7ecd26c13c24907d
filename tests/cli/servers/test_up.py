"""The real `finetune up`: Valkey, MLflow, API, reconciler and worker, from outside;
and what another process of the same user finds out about it."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from service.cli.servers import up
from service.cli.stack import lock
from service.cli.stack.linux import StopEvent
from service.cli.stack.orphans import Mark
from service.cli.terminal.exit_codes import USAGE
from service.settings import Settings
from tests.cli.servers.up_process import COMMAND, SECRETS, Up
from tests.support import unprivileged
from tests.support.processes import is_alive
from tests.support.servers.services import free_port, wait_until

pytestmark = pytest.mark.long

_READER = """
import json, os
found = {}
for pid in filter(str.isdigit, os.listdir("/proc")):
    shown = {}
    for name, size in (("environ", -1), ("cmdline", -1), ("mem", 0)):
        try:
            with open(f"/proc/{pid}/{name}", "rb") as file:
                shown[name] = file.read(size).decode(errors="replace")
        except OSError:
            shown[name] = None
    found[pid] = shown
print(json.dumps(found))
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def stack(home: Path, processes: None, request: pytest.FixtureRequest) -> Iterator[Up]:
    # Without the worker's fork server, which imports torch, unless a test asks for it.
    warm_start = getattr(request, "param", "0")
    variables = {**SECRETS, "FINETUNE_STAGE_ENV": "MY_PLUGIN_KEY"}
    variables |= {"FINETUNE_WARM_START": warm_start}
    started = Up(home, command=[*unprivileged.prefix(), *COMMAND], env=variables)
    yield started
    started.process.terminate()
    started.wait_end()


def seen_by_another() -> dict[int, dict[str, str | None]]:
    """What a process of the same user reads of every process: None is what it cannot."""
    command = [*unprivileged.prefix(), sys.executable, "-I", "-c", _READER]
    done = subprocess.run(command, capture_output=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return {int(pid): shown for pid, shown in found.items()}


def _is_ours(process: psutil.Process) -> bool:
    line = " ".join(process.cmdline())
    return any(part in line for part in ("service.cli", "-m worker --queues"))


class TestUp:
    def test_serves_restarts_a_part_and_leaves_nothing(self, stack: Up, home: Path) -> None:
        address = stack.wait_ready()
        assert address.pid == stack.process.pid
        assert stack.at_api_ready == address  # before the workers, which take seconds more
        output = "".join(stack.lines)
        for part in ("database", "valkey", "mlflow", "reconciler", "api", "worker"):
            assert output.count(f"{part} ready") == 1, output
        assert "password" not in json.dumps(json.loads((home / "up.json").read_text()))

        with httpx.Client(base_url=address.url, timeout=10, verify=False) as http:
            assert http.get("/health/ready").status_code == 200
            assert http.get("/v1/workers").status_code == 401
            http.headers.update(stack.authorization())
            workers = http.get("/v1/workers").json()["data"]
            assert sorted((worker["pid"], *worker["queues"]) for worker in workers) == sorted(
                (stack.part(f"--queues {queues}").pid, *queues.split(","))
                for queues in ("cpu,gpu", "predict", "preview")
            )
        self.check_mlflow(stack, address)

        self.check_nobody_else_reads(stack, output)
        if sys.platform == "linux":
            self.check_no_secret_and_no_memory_is_seen(stack)

        second = Up(home)
        assert second.wait_end() == 2
        assert f"a stack already runs in {home}" in "".join(second.lines)

        stack.part("reconciler").kill()
        stack.wait_said("reconciler was ended by SIGKILL; restart in 1 s")
        wait_until(lambda: "".join(stack.lines).count("reconciler ready") == 2, 30, "its return")

        family = stack.family()
        stack.process.send_signal(signal.SIGTERM)
        assert stack.wait_end() == 0
        assert [line.strip() for line in stack.lines if line.endswith("stopped\n")] == [
            "worker stopped",
            "worker-preview stopped",
            "worker-predict stopped",
            *sorted(["reconciler stopped", "api stopped"], reverse=True),
            "mlflow stopped",
            "valkey stopped",
        ]
        assert not [process for process in family if is_alive(process)]
        assert sorted(path.name for path in home.glob("up.*")) == []

    def check_mlflow(self, stack: Up, address: lock.StackAddress) -> None:
        """Only through the API, with a key or with the link that is printed."""
        assert address.mlflow_url == f"{address.url}/mlflow/"
        version = f"{address.mlflow_url}version"
        assert httpx.get(version).status_code == 401
        assert httpx.get(version, headers=stack.authorization()).status_code == 200
        itself = f"http://127.0.0.1:{stack.mlflow_port()}/version"
        for headers in ({}, stack.authorization()):
            assert httpx.get(itself, headers=headers).status_code == 401
        (link,) = [line for line in stack.lines if "/login#once=" in line]
        with httpx.Client(base_url=address.url, verify=False) as browser:
            token = link.strip().partition("#once=")[2]
            assert browser.post("/login", json={"link": token}).status_code == 204
            assert browser.get("/mlflow/").status_code == 200

    def check_nobody_else_reads(self, stack: Up, output: str) -> None:
        found = [path for path in stack.home.rglob("*") if not path.is_symlink()]
        readable = [path for path in [stack.home, *found] if path.stat().st_mode & 0o077]
        assert readable == []
        key = stack.authorization()["Authorization"].removeprefix("Bearer ")
        logs = [path.read_text() for path in (stack.home / "logs").iterdir()]
        assert not [text for text in [output, *logs] if key in text]
        for process in stack.family():
            assert key not in " ".join(process.cmdline())
            assert key not in process.environ().values()

    def check_no_secret_and_no_memory_is_seen(self, stack: Up) -> None:
        """The attack: the Hub token and the broker's password from `/proc/<worker>/environ`."""
        settings = (stack.home / "valkey" / "valkey.conf").read_text()
        password = settings.split("requirepass ")[1].split()[0]
        seen = seen_by_another()
        for secret in (*SECRETS.values(), password):
            assert [pid for pid, shown in seen.items() if secret in str(shown)] == []
        family = [psutil.Process(stack.process.pid), *stack.family()]
        ours = [process for process in family if _is_ours(process)]
        assert len(ours) >= 6  # `up` twice, API, reconciler, the worker and its pool
        for process in ours:
            assert (seen[process.pid]["environ"], seen[process.pid]["mem"]) == (None, None)
        # It does read what is open: MLflow's, in which there is no secret.
        tracking = [process for process in family if "mlflow" in " ".join(process.cmdline())]
        assert ["PATH=" in str(seen[process.pid]["environ"]) for process in tracking].count(True)

    @pytest.mark.heavy
    @pytest.mark.parametrize("stack", ["1"], indirect=True)
    def test_a_power_cut_leaves_nothing_and_the_port_is_free(self, stack: Up, home: Path) -> None:
        stack.wait_ready()
        if sys.platform == "linux":
            lines = (" ".join(process.cmdline()) for process in stack.family())
            assert any("worker.stages.fork_server" in line for line in lines)
            self.check_no_secret_and_no_memory_is_seen(stack)
        family, manager, port = stack.family(), stack.manager(), stack.mlflow_port()
        # Plainly started it is fifteen processes.
        assert stack.part("mlflow_app").children() == []
        # What is left is found by its mark, although nobody may read its environment.
        manager.send_signal(signal.SIGSTOP)
        manager.kill()
        stack.process.kill()
        assert stack.wait_end() == -signal.SIGKILL
        wait_until(lambda: not any(map(is_alive, family)), 10, "the end of all")
        again = Up(home, "--mlflow-port", port)
        try:
            again.wait_ready()
            assert again.mlflow_port() == port
        finally:
            again.process.terminate()
            assert again.wait_end() == 0


class TestRefusals:
    """Before any part is started. That the user gets the status: a second stack, above."""

    @pytest.fixture
    def refused(self, home: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
        def run(mlflow_port: int = 0, **values: Any) -> str:
            settings = Settings(home=home, port=0, **values)
            assert up.run(settings, mlflow_port, os.getpid(), Mark(home), StopEvent()) == USAGE
            return capsys.readouterr().err

        return run

    def test_a_public_address_without_keys(self, refused: Callable[..., str]) -> None:
        assert "refused to listen on 0.0.0.0" in refused(host="0.0.0.0", auth="off")

    def test_a_port_in_use(self, refused: Callable[..., str]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            assert f"port {port} on 127.0.0.1 is in use" in refused(port)

    def test_a_broker_of_the_users_that_does_not_answer(
        self, refused: Callable[..., str], home: Path
    ) -> None:
        url = f"redis://127.0.0.1:{free_port()}/0"
        assert "the broker at FINETUNE_REDIS_URL does not answer" in refused(redis_url=url)
        assert list(home.glob("up.*")) == []
