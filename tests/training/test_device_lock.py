"""Whoever trains on the CPU can be seen by others, until the last of its forks has ended."""

import subprocess
import sys
from pathlib import Path

import pytest

from chaos.checks.checker import is_free
from tests.support.servers.services import wait_until
from worker.training import device_lock

# Forks as a data loader does, reports it, and ends; its fork lives on until its input is closed.
_TRAINER = """
import os, sys
from pathlib import Path
from worker.training import device_lock
print(device_lock.share_cpu(Path(sys.argv[1])).name, flush=True)
if os.fork() == 0:
    sys.stdin.read()
"""


@pytest.mark.usefixtures("processes")
def test_the_cpu_is_held_until_the_last_fork_has_ended(tmp_path: Path) -> None:
    folder = tmp_path / "devices"
    with subprocess.Popen(
        [sys.executable, "-c", _TRAINER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as trainer:
        assert trainer.stdout is not None
        assert trainer.stdin is not None
        assert trainer.stdout.readline() == "cpu.lock\n"
        trainer.wait(30)
        assert not is_free(folder / "cpu.lock")
        trainer.stdin.close()
        wait_until(lambda: is_free(folder / "cpu.lock"), 30, "the end of the fork")


def test_a_folder_that_cannot_be_made_stops_no_training(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    path = device_lock.share_cpu(tmp_path / "file" / "devices")
    assert not path.exists()
