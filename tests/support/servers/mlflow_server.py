"""A real MLflow server on the loopback, in two processes, that tests can stop and restart."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

import httpx

from tests.support.servers import shared_servers
from tests.support.servers.services import free_port, wait_until

TOKEN = "a-token-of-tests"


class MlflowServer:
    """Keeps its data in `folder` and its port over restarts. A context manager."""

    def __init__(self, folder: Path, token: str | None = None) -> None:
        """With a `token` it is started as `finetune up` does; otherwise it is plain MLflow."""
        self._folder = folder
        self._token = token
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.uri = f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> subprocess.Popen[bytes]:
        command = [
            *(sys.executable, "-m", *self._module(), "--workers", "1"),
            *("--host", "127.0.0.1", "--port", str(self._port)),
            *("--backend-store-uri", f"sqlite:///{self._folder / 'mlflow.db'}"),
            *("--artifacts-destination", str(self._folder / "artifacts")),
        ]
        environment = os.environ | {
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "MLFLOW_DISABLE_TELEMETRY": "true",
        }
        if self._token is not None:
            self.token_file.write_text(self._token)
            environment["FINETUNE_MLFLOW_TOKEN_FILE"] = str(self.token_file)
        with (self._folder / "server.log").open("ab") as log:
            # A session of its own, so that its worker process is ended with it.
            self._process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        wait_until(self._answers, 120, "MLflow")
        return self._process

    @property
    def token_file(self) -> Path:
        return self._folder / "token"

    def _module(self) -> list[str]:
        return ["mlflow", "server"] if self._token is None else ["worker.tracking.mlflow_server"]

    def stop(self, with_signal: signal.Signals = signal.SIGTERM) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, with_signal)
            self._process.wait(30)
            self._process = None

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "server.log").read_text()
        try:
            return httpx.get(f"{self.uri}/health", timeout=2, verify=False).is_success
        except httpx.TransportError:
            return False


def shared_uri() -> str:
    """URI of the server of this test run; its users distinguish their own runs."""
    return shared_servers.url_of("mlflow", _start)


def shared_guarded_uri() -> str:
    """As `shared_uri`, of one that requires TOKEN."""
    return shared_servers.url_of("guarded-mlflow", _start_guarded)


def _start_guarded(folder: Path) -> tuple[str, int]:
    server = MlflowServer(folder, TOKEN)
    return server.uri, shared_servers.leave(server.start())


def _start(folder: Path) -> tuple[str, int]:
    server = MlflowServer(folder)
    return server.uri, shared_servers.leave(server.start())
