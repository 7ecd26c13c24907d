"""Which layers are used, and what a stage finds behind each of them alone."""

import os
import signal
import subprocess
import sys
from importlib.metadata import version
from typing import Any

import pytest

from service import own_packages
from worker.sandbox import layers, machine
from worker.sandbox.confined_command import confined
from worker.sandbox.view import Layer, View

# transformers imports the package that replaces the standard one, if MLflow is installed.
_VERSION = (
    "import importlib_metadata, importlib.metadata as m; print(m.version('finetune-service'))"
)


def test_a_stage_reads_our_version(layer: Layer) -> None:
    """In a source tree its metadata lies beside our packages, and is what Python finds first."""
    view = View(
        (layer,),
        read=tuple(machine.readable({})),
        devices=machine.devices(with_gpus=False),
        listed=machine.import_folders(),
    )
    variables = {**os.environ, **own_packages.variables({})}
    with confined([sys.executable, "-P", "-c", _VERSION], view) as (command, passed):
        done = subprocess.run(
            command, env=variables, pass_fds=passed, capture_output=True, text=True, cwd="/"
        )
    assert (done.stdout.strip(), done.stderr) == (version("finetune-service"), "")


@pytest.mark.parametrize(
    ("killed", "others", "expected"),
    [
        (0, signal.SIGSYS, False),  # what a policy does to it
        (2, 0, True),
        (3, 0, False),
    ],
)
def test_a_trial_that_was_killed_is_repeated(
    monkeypatch: pytest.MonkeyPatch, killed: int, others: int, expected: bool
) -> None:
    statuses = iter([-signal.SIGKILL] * killed + [-others])

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, next(statuses), "", "")

    monkeypatch.setattr(subprocess, "run", run)
    assert layers._has_namespaces.__wrapped__() is expected
