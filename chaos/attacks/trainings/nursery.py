"""Forks trainers of the real train stage from one process that has imported torch.

Starting Python and importing torch takes seconds, a fork milliseconds; an attack that kills a
trainer 200 times needs the latter.
"""

import atexit
import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chaos.faults.small_disk import leave_free
from service.contract.stage.stages import StageRequest

# A trainer prints a line for each of these moments.
SAVING, SAVED, REGISTERED, DONE, FAILED, ENDED = (
    *("saving", "saved", "registered"),
    *("done", "failed", "ended"),
)


class Nursery:
    """Forks trainers of tests/training/support/jobs.py's tiny model, one at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "chaos.attacks.trainings.nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
        )

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()

    def start(self, request: StageRequest, fill: tuple[Path, int] | None = None) -> int:
        """Start a trainer with this request; its pid.

        `fill`: a disk, and how many bytes to leave free on it after the first checkpoint.
        """
        path = request.attempt_dir / "request.json"
        path.write_text(request.model_dump_json())
        job = {"request": str(path), "fill": fill and [str(fill[0]), fill[1]]}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        return int(self.message()[1])

    def message(self) -> tuple[str, str]:
        """The trainer's next message and its argument."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the nursery has died; its stderr has the reason")
        kind, _, argument = line.rstrip("\n").partition(" ")
        return kind, argument

    def messages(self) -> Iterator[tuple[str, str]]:
        """All of the trainer's messages, until its process has ended."""
        while True:
            message = self.message()
            yield message
            if message[0] == ENDED:
                return


@functools.cache
def nursery() -> Nursery:
    """The one of this process, shared by three attacks; it ends with the process."""
    made = Nursery()
    atexit.register(made.close)
    return made


def _serve() -> None:
    import torch

    from tests.training.support import jobs as support

    torch.set_num_threads(1)
    support.use_tiny_task()
    for line in sys.stdin:
        job = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _train(job)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        _send(ENDED, os.waitstatus_to_exitcode(status))


def _send(kind: str, argument: Any = "") -> None:
    os.write(1, f"{kind} {argument}\n".encode())


def _train(job: dict[str, Any]) -> None:
    from service.contract.failures import StageError
    from service.contract.stage.events import CheckpointSaved, StageEvent
    from tests.training.support import jobs as support
    from worker.storage import atomic_dir

    _send("born", os.getpid())
    request = StageRequest.model_validate_json(Path(job["request"]).read_bytes())
    atomic_dir.writing = _reported(atomic_dir.writing)

    def report_checkpoint(event: StageEvent) -> bool:
        if isinstance(event, CheckpointSaved):
            _send(REGISTERED, event.path)
            if job["fill"]:
                leave_free(Path(job["fill"][0]), job["fill"][1])
                job["fill"] = None
        return False

    try:
        result, recorder = support.run(request, support.Recorder(kill_after=report_checkpoint))
    except StageError as error:
        _send(FAILED, error.failure.model_dump_json())
    else:
        losses = recorder.train_values("loss")
        _send(DONE, json.dumps({"sha256": result.weights_sha256, "losses": losses}))


def _reported(writing: Any) -> Any:
    @contextmanager
    def reporting(final_dir: Path) -> Iterator[Path]:
        _send(SAVING, final_dir)
        with writing(final_dir) as partial:
            yield partial
        _send(SAVED, final_dir)

    return reporting


if __name__ == "__main__":
    _serve()
