"""How a stage's process is started: its inputs, and the default, a new interpreter."""

import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from service.contract.stage.stages import EVENT_FD_VARIABLE
from service.system import inherited_secrets
from service.system.prctl import adopt_orphans
from worker.processes import control_group, kernel_limits, priority
from worker.sandbox.confined_command import confined
from worker.sandbox.view import View


@dataclass(frozen=True)
class Launch:
    """`output` (the job's log), `events` (the pipe), `stdin` and `locks` (on the stage's GPUs, held
    until it has ended) are file descriptors of this process. `secrets` are set in the stage's
    environment, but only once it runs (`service.system.inherited_secrets`). `limits` are those of
    `worker.processes.kernel_limits`. Without a `view` the stage is not confined. `group` is the
    folder of the control group that it joins before it can start a process. `nice`: its priority,
    as `worker.processes.priority` lowers it."""

    command: list[str]
    environment: Mapping[str, str]
    folder: Path
    output: int
    events: int
    stdin: int = subprocess.DEVNULL
    locks: tuple[int, ...] = ()
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    limits: Mapping[int, int] = field(default_factory=dict)
    view: View | None = None
    group: Path | None = None
    nice: int = 0


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
    adopt_orphans()  # what leaves the stage's session is still found, and ended with it
    environment = {**launch.environment, EVENT_FD_VARIABLE: str(launch.events)}
    with (
        inherited_secrets.pipe(launch.secrets) as (variables, of_secrets),
        confined(launch.command, launch.view) as (command, of_view),
    ):
        process = subprocess.Popen(
            control_group.joining(command, launch.group),
            env=environment | variables,
            cwd=launch.folder,
            stdin=launch.stdin,
            stdout=launch.output,
            stderr=subprocess.STDOUT,
            pass_fds=(launch.events, *launch.locks, *of_secrets, *of_view),
            start_new_session=True,
        )
    kernel_limits.apply(process.pid, launch.limits)
    priority.lower(process.pid, launch.nice)
    return process
