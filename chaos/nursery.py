"""Many short lives of the real train stage: one process that has imported torch forks them all.

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

from chaos.small_disk import leave_free
from service.contract.stages import StageRequest

# What a life says on its way, a line each.
SAVING, SAVED, REGISTERED, DONE, FAILED, ENDED = (
    *("saving", "saved", "registered"),
    *("done", "failed", "ended"),
)


class Nursery:
    """Forks trainers of tests/training/support.py's tiny model, one at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "chaos.nursery"],
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
        """Begin a life on this request; its pid.

        `fill`: once its first checkpoint is there, a file is written that leaves so many bytes
        free on the disk.
        """
        path = request.attempt_dir / "request.json"
        path.write_text(request.model_dump_json())
        wish = {"request": str(path), "fill": fill and [str(fill[0]), fill[1]]}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(wish) + "\n")
        self._process.stdin.flush()
        return int(self.word()[1])

    def word(self) -> tuple[str, str]:
        """What the life says next, and its argument."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the nursery has died; it said why on stderr")
        word, _, argument = line.rstrip("\n").partition(" ")
        return word, argument

    def words(self) -> Iterator[tuple[str, str]]:
        """All that it says until its process has ended."""
        while True:
            word = self.word()
            yield word
            if word[0] == ENDED:
                return


@functools.cache
def nursery() -> Nursery:
    """The one of this process, which ends with it: three attacks can share it."""
    made = Nursery()
    atexit.register(made.close)
    return made


def _serve() -> None:
    import torch

    from tests.training import support

    torch.set_num_threads(1)
    support.use_tiny_task()
    for line in sys.stdin:
        wish = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _live(wish)
            os._exit(0)
        # No child speaks before this line: it waits for its parent's word.
        _, status = os.waitpid(pid, 0)
        _say(ENDED, os.waitstatus_to_exitcode(status))


def _say(word: str, argument: Any = "") -> None:
    os.write(1, f"{word} {argument}\n".encode())


def _live(wish: dict[str, Any]) -> None:
    from service.contract.events import CheckpointSaved, StageEvent
    from service.contract.failures import StageError
    from tests.training import support
    from worker.storage import atomic_dir

    _say("born", os.getpid())
    request = StageRequest.model_validate_json(Path(wish["request"]).read_bytes())
    atomic_dir.writing = _told(atomic_dir.writing)

    def heard(event: StageEvent) -> bool:
        if isinstance(event, CheckpointSaved):
            _say(REGISTERED, event.path)
            if wish["fill"]:
                leave_free(Path(wish["fill"][0]), wish["fill"][1])
                wish["fill"] = None
        return False

    try:
        result, recorder = support.run(request, support.Recorder(kill_after=heard))
    except StageError as error:
        _say(FAILED, error.failure.model_dump_json())
    else:
        losses = recorder.train_values("loss")
        _say(DONE, json.dumps({"sha256": result.weights_sha256, "losses": losses}))


def _told(writing: Any) -> Any:
    @contextmanager
    def telling(final_dir: Path) -> Iterator[Path]:
        _say(SAVING, final_dir)
        with writing(final_dir) as partial:
            yield partial
        _say(SAVED, final_dir)

    return telling


if __name__ == "__main__":
    _serve()
