"""Runs processes with a time limit and kills them with all their descendants."""

import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import psutil

from service import own_packages
from service.prctl import adopt_orphans

_TAIL_CHARACTERS: Final = 1500
_KEPT_BYTES: Final = 256 * 1024
# A process that the kernel cannot kill (inside a driver call) must not delay the other checks.
_KILL_SECONDS: Final = 10.0


@dataclass(frozen=True)
class Done:
    """How a process ended."""

    status: int | None
    """The return code of subprocess; None if the process was killed at its limit."""
    output: str
    """The end of stdout and stderr, combined."""

    @property
    def tail(self) -> str:
        """The last lines of the output, short enough for a reason."""
        return self.output[-_TAIL_CHARACTERS:].strip()


def run(
    module: str,
    arguments: Sequence[str],
    *,
    seconds: float,
    environment: Mapping[str, str],
    folder: Path,
) -> Done:
    """Run a module in its own session; when it ends, everything that it started is killed.

    It dies with this process (`worker.processes.parent_death`). Its output goes to a file, because
    a pipe stays open as long as any process holds it. From then on this process adopts orphans.
    """
    adopt_orphans()
    earlier = set(descendants())
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            own_packages.python(
                "worker.processes.parent_death", str(os.getpid()), module, *arguments
            ),
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        status: int | None = None
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass
        finally:
            kill_all_but(earlier)
            with suppress(subprocess.TimeoutExpired):
                process.wait(1)
        return Done(status, _end_of(output))


def descendants() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def kill_all_but(earlier: set[psutil.Process]) -> None:
    """Kill the descendants of this process that are not in `earlier`, until none is left."""
    deadline = time.monotonic() + _KILL_SECONDS
    while (left := [p for p in descendants() if p not in earlier]) and time.monotonic() < deadline:
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=0.2)


def _end_of(file: IO[bytes]) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _KEPT_BYTES))
    return file.read().decode(errors="replace")
