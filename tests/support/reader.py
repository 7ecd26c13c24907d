"""A reader of the documentation: starts the service and pastes commands into a shell."""

import functools
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from service.cli.stack import lock
from service.system import prctl
from tests.support import shell
from tests.support.servers import services

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 180
STOP_SECONDS = 120
_SHORTER = {
    "num_train_epochs: 3\n": "num_train_epochs: 3\n  max_steps: 10\n",
    "validation: ./squad/validation-v1.1.json\n": (
        "validation: ./squad/validation-v1.1.json\n"
        "  max_train_samples: 160\n  max_eval_samples: 32\n"
    ),
}
"""Tests are about the commands, not about the quality of the example's model."""
_RUNS_LINE = "trap 'echo \"failed: $BASH_COMMAND\" >&2' ERR"


@dataclass(frozen=True)
class Reader:
    """A copy of the repository's folder as a reader has it, next to a running `finetune up`."""

    folder: Path
    url: str
    environment: Mapping[str, str]

    def paste(self, script: str, *, seconds: float = 420) -> str:
        """Run the commands in one shell, which ends at the first that fails; what they print.

        Raises AssertionError with the output if one fails, or if they take longer.
        """
        script = f"set -Eeuo pipefail\n{_RUNS_LINE}\n{script}"
        return shell.printed(shell.start(script, self.folder, self.environment), seconds)


@contextmanager
def reading(folder: Path, models: Path, hub_names: Mapping[str, Path]) -> Iterator[Reader]:
    """A reader in the new `folder` whose service may load `models`.

    `hub_names`: model ids of the Hub → folders in their place, because tests reach no Hub.
    """
    folder.mkdir()
    (folder / ".venv").symlink_to(sys.prefix)
    shutil.copytree(ROOT / "examples", folder / "examples")
    for spec in (folder / "examples").glob("*.yaml"):
        text = without_hub(spec.read_text(encoding="utf-8"), hub_names)
        for long, short in _SHORTER.items():
            text = text.replace(long, short)
        spec.write_text(text, encoding="utf-8")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FINETUNE_")} | {
        "FINETUNE_HOME": str(folder / "home"),
        "FINETUNE_MODEL_ROOTS": str(models),
        "FINETUNE_DOCTOR_AT_START": "0",
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "100",
    }
    with _up(folder, environment) as url:
        yield Reader(folder, url, environment)


def without_hub(text: str, hub_names: Mapping[str, Path]) -> str:
    """The text with local folders in place of the Hub's models."""
    for name, model in hub_names.items():
        text = re.sub(rf"\b{re.escape(name)}\b", str(model), text)
    return text


@contextmanager
def _up(folder: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """What `make up` runs, on free ports; yields the address of the API."""
    with (folder / "up.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "service.cli", "up", "--port", "0", "--mlflow-port", "0"],
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # A test run that is killed leaves no service behind.
            preexec_fn=functools.partial(prctl.die_with_parent, os.getpid(), signal.SIGTERM),
        )
    try:
        services.wait_until(
            lambda: process.poll() is not None or _is_ready(folder),
            START_SECONDS,
            "finetune up",
        )
        address = _address(folder)
        assert address is not None, (folder / "up.log").read_text(errors="replace")[-4000:]
        yield address.url
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        finally:
            process.kill()  # whatever it started ends with it


def _is_ready(folder: Path) -> bool:
    return "all parts are ready" in (folder / "up.log").read_text(errors="replace")


def _address(folder: Path) -> lock.StackAddress | None:
    return lock.read_address(folder / "home")
