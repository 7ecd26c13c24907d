"""Slows a training down, so that it outlasts an attack on a machine of any speed."""

import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

import psutil

from chaos.stack.processes import attempt_of, stages
from tests.e2e.stack import Part

_POLL_SECONDS: Final = 0.01


class Pace:
    """Limits the job's `train` to `limit` steps and to a number of steps per second.

    It reads the steps from the checkpoints on disk, so there should be many of them, and stops
    (SIGSTOP) all processes of the training while it is ahead. A context manager; after it the
    training is no longer limited. A few steps more than `limit` can be made before it stops.
    """

    def __init__(
        self, worker: Part, workspace: Path, *, limit: int, steps_per_second: float | None = None
    ) -> None:
        self._worker = worker
        self._workspace = workspace
        self._rate = steps_per_second
        self._limit = limit
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pace")
        self._halted: set[int] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def step(self) -> int:
        """The step of the newest checkpoint."""
        found = self._workspace.glob("attempts/*/checkpoints/*")
        return max((int(path.name) for path in found if path.name.isdigit()), default=0)

    @property
    def is_at_limit(self) -> bool:
        return self.step >= self._limit

    def _run(self) -> None:
        started, first = time.monotonic(), self.step
        while not self._over.wait(_POLL_SECONDS):
            seconds = time.monotonic() - started
            due = self._limit if self._rate is None else first + self._rate * seconds
            if self.step >= min(due, self._limit):
                self._halt()
            else:
                self._continue()
        self._continue()

    def _halt(self) -> None:
        if not self._halted:
            self._halted = {
                member.pid
                for process in self._trainers()
                for member in (process, *_descendants(process))
            }
            self._send(signal.SIGSTOP)

    def _continue(self) -> None:
        self._send(signal.SIGCONT)
        self._halted = set()

    def _trainers(self) -> list[psutil.Process]:
        job_id = self._workspace.name
        return [p for p in stages(self._worker) if (attempt_of(p) or ("", 0))[0] == job_id]

    def _send(self, number: signal.Signals) -> None:
        for pid in self._halted:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return process.children(recursive=True)
    return []
