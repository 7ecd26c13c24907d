"""A real MLflow server on the loopback, in two processes, that tests can end and start again."""

import atexit
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Self

import httpx

from tests.support.services import free_port, wait_until


class MlflowServer:
    """Keeps its data in `folder` and its port over restarts. A context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.uri = f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        command = [
            *(sys.executable, "-m", "mlflow", "server", "--workers", "1"),
            *("--host", "127.0.0.1", "--port", str(self._port)),
            *("--backend-store-uri", f"sqlite:///{self._folder / 'mlflow.db'}"),
            *("--artifacts-destination", str(self._folder / "artifacts")),
        ]
        environment = os.environ | {
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "MLFLOW_DISABLE_TELEMETRY": "true",
        }
        with (self._folder / "server.log").open("ab") as log:
            # A session of its own, so that its worker process is ended with it.
            self._process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        wait_until(self._answers, 120, "MLflow")

    def stop(self, with_signal: signal.Signals = signal.SIGTERM) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, with_signal)
            self._process.wait(30)
            self._process = None

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "server.log").read_text()
        try:
            return httpx.get(f"{self.uri}/health", timeout=2).is_success
        except httpx.TransportError:
            return False


@functools.cache
def shared() -> MlflowServer:
    """The one of this process, which ends with it; whoever uses it tells its own runs apart."""
    folder = Path(tempfile.mkdtemp(prefix="finetune-mlflow-"))
    server = MlflowServer(folder)
    atexit.register(shutil.rmtree, folder)
    atexit.register(server.stop)
    server.start()
    return server
