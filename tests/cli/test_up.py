"""The real `finetune up`: Valkey, MLflow, API, reconciler and worker, from outside."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import psutil
import pytest

from service.cli.stack import lock
from tests.support.services import free_port, wait_until

pytestmark = pytest.mark.long

_COMMAND = [sys.executable, "-m", "service.cli", "up", "--port", "0", "--mlflow-port", "0"]


class Up:
    """The command as a process; its lines are collected as they come."""

    def __init__(self, home: Path, *options: str, env: Mapping[str, str] | None = None) -> None:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("FINETUNE_")}
        self.home = home
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [*_COMMAND, *options],
            env={**inherited, "FINETUNE_HOME": str(home), "FINETUNE_DOCTOR_AT_START": "0"}
            | dict(env or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            self.lines += iter(self.process.stdout.readline, "")

    def wait_ready(self) -> lock.StackAddress:
        def ready() -> bool:
            assert self.process.poll() is None, "".join(self.lines)
            return lock.read_address(self.home) is not None

        wait_until(ready, 120, "the stack")
        address = lock.read_address(self.home)
        assert address is not None
        self.wait_said("all parts are ready")
        return address

    def wait_said(self, text: str, seconds: float = 60) -> None:
        wait_until(lambda: any(text in line for line in list(self.lines)), seconds, text)

    def wait_end(self) -> int:
        status = self.process.wait(90)
        self._reader.join(10)
        return status

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def part(self, mark: str) -> psutil.Process:
        """The part whose command line contains `mark`."""
        parts = self.manager().children()
        (found,) = [part for part in parts if mark in " ".join(part.cmdline())]
        return found

    def manager(self) -> psutil.Process:
        children = psutil.Process(self.process.pid).children()
        (found,) = [child for child in children if child.children()]
        return found


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def stack(home: Path) -> Iterator[Up]:
    up = Up(home)
    yield up
    up.process.terminate()
    up.wait_end()


class TestUp:
    def test_serves_restarts_a_part_and_leaves_nothing(self, stack: Up, home: Path) -> None:
        address = stack.wait_ready()
        assert address.pid == stack.process.pid
        output = "".join(stack.lines)
        for part in ("database", "valkey", "mlflow", "reconciler", "api", "worker"):
            assert output.count(f"{part} ready") == 1, output
        assert "password" not in json.dumps(json.loads((home / "up.json").read_text()))

        with httpx.Client(base_url=address.url, timeout=10) as http:
            assert http.get("/health/ready").status_code == 200
            (worker,) = http.get("/v1/workers").json()["data"]
            assert worker["pid"] == stack.part("-m worker").pid
            assert sorted(worker["queues"]) == ["cpu", "gpu"]
        assert address.mlflow_url is not None
        assert httpx.get(f"{address.mlflow_url}/health").text == "OK"

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
            *sorted(["reconciler stopped", "api stopped"], reverse=True),
            "mlflow stopped",
            "valkey stopped",
        ]
        assert not [process for process in family if process.is_running()]
        assert sorted(path.name for path in home.glob("up.*")) == []

    @pytest.mark.heavy
    def test_a_power_cut_leaves_nothing_and_the_port_is_free(self, stack: Up, home: Path) -> None:
        address = stack.wait_ready()
        assert address.mlflow_url is not None
        family, manager = stack.family(), stack.manager()
        assert stack.part("mlflow").children() == []  # plainly started it is fifteen processes
        stack.process.kill()
        manager.kill()
        assert stack.wait_end() == -signal.SIGKILL
        wait_until(lambda: not any(one.is_running() for one in family), 10, "the end of all")
        port = address.mlflow_url.rpartition(":")[2]
        again = Up(home, "--mlflow-port", port)
        try:
            assert again.wait_ready().mlflow_url == address.mlflow_url
        finally:
            again.process.terminate()
            assert again.wait_end() == 0


class TestRefusals:
    def test_a_public_address_without_a_key(self, home: Path) -> None:
        up = Up(home, "--host", "0.0.0.0")
        assert up.wait_end() == 2
        assert "refused to listen on 0.0.0.0" in "".join(up.lines)

    def test_a_port_in_use(self, home: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            up = Up(home, "--mlflow-port", str(port))
            assert up.wait_end() == 2
        assert f"port {port} on 127.0.0.1 is in use" in "".join(up.lines)

    def test_a_broker_of_the_users_that_does_not_answer(self, home: Path) -> None:
        up = Up(home, env={"FINETUNE_REDIS_URL": f"redis://127.0.0.1:{free_port()}/0"})
        assert up.wait_end() == 2
        assert "the broker at FINETUNE_REDIS_URL does not answer" in "".join(up.lines)
        assert list(home.glob("up.*")) == []
