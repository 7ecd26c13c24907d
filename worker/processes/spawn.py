"""How a stage's process is started: its inputs, and the default, a new interpreter."""

import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from service.contract.stages import EVENT_FD_VARIABLE


@dataclass(frozen=True)
class Launch:
    """`output` (the job's log), `events` (the pipe), `stdin` and `locks` (on the stage's GPUs, held
    until it has ended) are file descriptors of this process."""

    command: list[str]
    environment: Mapping[str, str]
    folder: Path
    output: int
    events: int
    stdin: int = subprocess.DEVNULL
    locks: tuple[int, ...] = ()


class Process(Protocol):
    """A child of this process, in its own session."""

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None:
        """None until `wait` has been called."""

    def wait(self) -> int:
        """Wait until it has ended; its exit status, or minus the number of the signal."""


Start = Callable[[Launch], Process]


def new_interpreter(launch: Launch) -> Process:
    """Start a new interpreter, which has to import everything."""
    return subprocess.Popen(
        launch.command,
        env={**launch.environment, EVENT_FD_VARIABLE: str(launch.events)},
        cwd=launch.folder,
        stdin=launch.stdin,
        stdout=launch.output,
        stderr=subprocess.STDOUT,
        pass_fds=(launch.events, *launch.locks),
        start_new_session=True,
    )
