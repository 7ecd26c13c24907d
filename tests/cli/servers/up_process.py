"""`finetune up` as a process, seen from outside."""

import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from service.cli.stack import lock
from tests.support.servers.services import wait_until

SECRETS = {
    "FINETUNE_HUB_TOKEN": "hf_attack1",
    "PGPASSWORD": "attack2",
    "MLFLOW_TRACKING_PASSWORD": "attack3",
    "MY_PLUGIN_KEY": "attack4",
    "WANDB_API_KEY": "attack5",
}
"""What nobody else may read; `MY_PLUGIN_KEY` needs FINETUNE_STAGE_ENV."""
COMMAND = [sys.executable, "-m", "service.cli", "up", "--port", "0", "--mlflow-port", "0"]


class Up:
    """The command as a process; its lines are collected as they come."""

    def __init__(
        self,
        home: Path,
        *options: str,
        env: Mapping[str, str] | None = None,
        command: Sequence[str] = COMMAND,
        cwd: Path | None = None,
    ) -> None:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("FINETUNE_")}
        self.home = home
        self.lines: list[str] = []
        self.at_api_ready: lock.StackAddress | None = None
        """What clients could read when it said that the API is ready."""
        self.process = subprocess.Popen(
            [*command, *options],
            env={**inherited, "FINETUNE_HOME": str(home), "FINETUNE_DOCTOR_AT_START": "0"}
            | dict(env or {}),
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            for line in iter(self.process.stdout.readline, ""):
                if line.startswith("api ready"):
                    self.at_api_ready = lock.read_address(self.home)
                self.lines.append(line)

    def wait_ready(self) -> lock.StackAddress:
        def ready() -> bool:
            assert self.process.poll() is None, "".join(self.lines)
            return any("all parts are ready" in line for line in list(self.lines))

        wait_until(ready, 300, "the stack")
        address = lock.read_address(self.home)
        assert address is not None
        return address

    def wait_said(self, text: str, seconds: float = 60) -> None:
        wait_until(lambda: any(text in line for line in list(self.lines)), seconds, text)

    def wait_end(self) -> int:
        status = self.process.wait(90)
        self._reader.join(10)
        return status

    def authorization(self) -> dict[str, str]:
        """The header that it prepares for the user."""
        name, _, value = (self.home / "authorization").read_text().strip().partition(": ")
        return {name: value}

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def part(self, mark: str) -> psutil.Process:
        """The part whose command line contains `mark`."""
        parts = self.manager().children()
        (found,) = [part for part in parts if mark in " ".join(part.cmdline())]
        return found

    def mlflow_port(self) -> str:
        words = self.part("mlflow_app").cmdline()
        return words[words.index("--port") + 1]

    def manager(self) -> psutil.Process:
        children = psutil.Process(self.process.pid).children()
        (found,) = [child for child in children if child.children()]
        return found
