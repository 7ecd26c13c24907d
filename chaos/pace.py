"""Holds a training back, so that it is not over before an attack is, however fast the machine."""

import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

import psutil

from chaos.processes import attempt_of, stages
from tests.e2e.stack import Part

_LOOK_SECONDS: Final = 0.01


class Pace:
    """Lets the job's `train` make `limit` steps, and not more than so many a second.

    The steps are those of its checkpoints on disk, of which there should be many; it is stopped
    (SIGSTOP) while it is ahead, with all its processes. A context manager; at its end the training
    runs free. A few steps more than `limit` can be made before the stop arrives.
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
        """Of the newest checkpoint."""
        found = self._workspace.glob("attempts/*/checkpoints/*")
        return max((int(path.name) for path in found if path.name.isdigit()), default=0)

    @property
    def is_at_limit(self) -> bool:
        return self.step >= self._limit

    def _run(self) -> None:
        begun, first = time.monotonic(), self.step
        while not self._over.wait(_LOOK_SECONDS):
            seconds = time.monotonic() - begun
            due = self._limit if self._rate is None else first + self._rate * seconds
            if self.step >= min(due, self._limit):
                self._halt()
            else:
                self._go_on()
        self._go_on()

    def _halt(self) -> None:
        if not self._halted:
            self._halted = {
                member.pid for process in self._trainers() for member in (process, *_below(process))
            }
            self._send(signal.SIGSTOP)

    def _go_on(self) -> None:
        self._send(signal.SIGCONT)
        self._halted = set()

    def _trainers(self) -> list[psutil.Process]:
        job_id = self._workspace.name
        return [p for p in stages(self._worker) if (attempt_of(p) or ("", 0))[0] == job_id]

    def _send(self, number: signal.Signals) -> None:
        for pid in self._halted:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def _below(process: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return process.children(recursive=True)
    return []
