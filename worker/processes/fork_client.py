"""Starts stages by forking them from a process that has imported torch already.

The supervisor's process owns one such fork server and never imports torch itself. A stage that the
server forks becomes the supervisor's own child, so that its signals, exit status and end are like
those of a process that the supervisor started. If forking fails, a new interpreter is started.
"""

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

import service
import worker
from service.contract.states import Stage
from service.settings import Settings
from service.system import inherited_secrets, own_packages
from service.system.prctl import adopt_orphans
from worker.devices.gpus import Device
from worker.processes import control_group, kernel_limits, linux, priority, spawn
from worker.processes.fork_protocol import (
    FORK,
    LAUNCHER,
    MAX_MESSAGE,
    PREDICTOR,
    READY,
    ForkRequest,
    lasting,
)
from worker.processes.spawn import Launch, Process
from worker.processes.stage_environment import stage_environment

log = structlog.get_logger(__name__)

STAGE_MODULES: Final = (
    *(f"worker.stages.{stage}.stage" for stage in Stage),
    "worker.stages.preview.stage",
    LAUNCHER,
    PREDICTOR,
)
_IMPORT_SECONDS: Final = 60.0
_FORK_SECONDS: Final = 10.0
_GROWTH_BYTES: Final = 256 * 1024**2
_GIVE_UP_AFTER: Final = 3
# `ps` shows only as much of a new command line as the first one had room for.
_ROOM: Final = "." * 1024
FORKABLE: Final = {
    # A fork keeps only one thread. These settings stop thread pools that would start on import;
    # a forked stage gets back its own values.
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    # A forked process cannot use CUDA that was started before the fork. Without a device nothing
    # starts it; a forked stage sees the devices of its job.
    "CUDA_VISIBLE_DEVICES": "",
}


# `publish` imports mlflow when it needs it.
IMPORTS: Final = (*STAGE_MODULES, "worker.inference.text_model", "mlflow")
# Without bitsandbytes, which peft imports: at import it chooses its library by the visible GPUs,
# and the server sees none.
IMPORTS_WITH_GPU: Final = (
    *("torch", "torch._dynamo", "torch.distributed.tensor", "transformers", "datasets"),
    *("accelerate", "transformers.modeling_utils", "transformers.models.auto.modeling_auto"),
    *(LAUNCHER, PREDICTOR, "worker.stages.publish.stage", "mlflow"),
)


class NoForkError(Exception):
    """The fork server could not start the stage; no process of it runs."""


class UnfitError(NoForkError):
    """The fork server can never start stages: an import has started threads or CUDA."""


def make(
    settings: Settings, gpus: Sequence[Device], also: Sequence[str] = ()
) -> "ForkClient | None":
    """The fork client of a worker with these GPUs; None if settings or system do not allow one.
    `also`: modules that run as stages do.

    On a MIG instance torch counts devices by starting CUDA, so stages there are not forked.
    """
    if not settings.warm_start or sys.platform != "linux":
        return None
    if any(gpu["mig"] for gpu in gpus):
        log.info("fork_server.disabled", reason="one of the GPUs is a MIG instance")
        return None
    # All stages have the environment of `train`, except for the LATE variables.
    environment = stage_environment(settings, Stage.TRAIN)
    imports = IMPORTS_WITH_GPU if gpus else IMPORTS
    return ForkClient(environment, modules=(*STAGE_MODULES, *also), imports=imports)


class ForkClient:
    """Must be used in the main thread, like stages; afterwards this process adopts orphans.

    `environment`: of every stage, without secrets. `modules`: those that run as stages. `imports`:
    what the server imports before it forks. `growth_bytes`: how much its memory may grow before a
    new server replaces it.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        modules: Sequence[str] = STAGE_MODULES,
        imports: Sequence[str] = IMPORTS,
        growth_bytes: int = _GROWTH_BYTES,
    ) -> None:
        self._environment = lasting(environment)
        self._modules = modules
        self._imports = imports
        self._growth_bytes = growth_bytes
        self._server: _Server | None = None
        self._failures = 0

    @property
    def server_pid(self) -> int | None:
        """None while no server runs."""
        return self._server.pid if self._server is not None and self._server.is_alive else None

    def ensure_server(self) -> None:
        """Start a server, unless one runs that has not grown and has imported the current code."""
        server = self._server
        if server is not None:
            why = server.why_replace(self._growth_bytes)
            if why is None:
                return
            log.info("fork_server.replaced", reason=why)
            self.close()
        if self._failures < _GIVE_UP_AFTER:
            self._server = _Server(self._environment, self._imports)

    def start(self, wanted: Launch) -> Process:
        """Fork the stage, or start a new interpreter if it cannot be forked."""
        why_not = self._why_not_fork(wanted)
        if why_not is not None:
            log.info("fork_server.bypassed", reason=why_not)
            return spawn.new_interpreter(wanted)
        self.ensure_server()
        if self._server is None:
            return spawn.new_interpreter(wanted)
        try:
            process = self._server.start(wanted)
        except (NoForkError, OSError) as error:
            self._failures = _GIVE_UP_AFTER if isinstance(error, UnfitError) else self._failures + 1
            log.warning(
                "fork_server.bypassed",
                reason=str(error),
                for_good=self._failures >= _GIVE_UP_AFTER,
            )
            self.close()
            return spawn.new_interpreter(wanted)
        self._failures = 0
        return process

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._server = None

    def _why_not_fork(self, wanted: Launch) -> str | None:
        if wanted.command[:4] not in [own_packages.python(module) for module in self._modules]:
            return "the command is not a stage"
        changed = lasting(wanted.environment).items() ^ self._environment.items()
        if changed:
            # Only their names: the operator may have put a secret into a value.
            return f"the environment differs: {', '.join(sorted({name for name, _ in changed}))}"
        return None


class _Server:
    def __init__(self, environment: Mapping[str, str], imports: Sequence[str]) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._code = _newest_source()
        self._born = time.monotonic()
        self._first_bytes: int | None = None  # known when it is ready
        with theirs:
            self._process = self._start_process({**environment, **FORKABLE}, theirs, imports)
        self._gate = self._ask_for_spare()

    def _start_process(
        self, environment: Mapping[str, str], theirs: socket.socket, imports: Sequence[str]
    ) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [
                *own_packages.python("worker.stages.fork_server"),
                *(str(theirs.fileno()), *imports, _ROOM),
            ],
            env=environment,
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def why_replace(self, growth_bytes: int) -> str | None:
        if not self.is_alive:
            return f"it ended with status {self._process.returncode}"
        if self._first_bytes is not None:
            grown = linux.resident_bytes(self.pid) - self._first_bytes
            if grown > growth_bytes:
                return f"it grew by {grown} bytes"
        return None if _newest_source() == self._code else "the code on disk has changed"

    def start(self, wanted: Launch) -> Process:
        """Turn the waiting process into the stage. NoForkError or OSError if there is none."""
        request = ForkRequest(
            command=wanted.command,
            environment=dict(wanted.environment),
            folder=str(wanted.folder),
            has_stdin=wanted.stdin != subprocess.DEVNULL,
            has_secrets=bool(wanted.secrets),
            view=wanted.view and wanted.view.to_json(),
        )
        spare = self._await_spare()
        kernel_limits.apply(spare.pid, wanted.limits)
        priority.lower(spare.pid, wanted.nice)
        try:
            control_group.put(spare.pid, wanted.group)
            message = request.model_dump_json().encode()
            with inherited_secrets.pipe(wanted.secrets) as (_, secrets):
                stdin = [wanted.stdin] if request.has_stdin else []
                descriptors = [wanted.output, wanted.events, *stdin, *secrets, *wanted.locks]
                socket.send_fds(self._gate, [message], descriptors)
        except OSError:  # it was killed, its group has ended, or the message is too long
            spare.end()
            raise
        self._gate.close()
        try:
            self._gate = self._ask_for_spare()
        except OSError:  # a server that has ended is noticed before the next stage
            self._process.kill()
        return spare

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        # End the waiting process, even if it is just being forked.
        asked = [] if self._gate.fileno() < 0 else [self._gate]
        if select.select(asked, [], [], _FORK_SECONDS if asked else 0)[0]:
            with suppress(NoForkError, OSError):
                _Forked(self._gate.recv(MAX_MESSAGE)).end()
        self._gate.close()
        self._control.close()

    def _ask_for_spare(self) -> socket.socket:
        """The socket on which the new process will send its pid."""
        adopt_orphans()
        gate, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                socket.send_fds(self._control, [FORK], [theirs.fileno()])
            except OSError:
                gate.close()
                raise
        return gate

    def _await_spare(self) -> "_Forked":
        """The process that waits for a stage, as soon as it is a child of this process."""
        poll = select.poll()
        poll.register(self._gate, select.POLLIN)
        poll.register(self._control, select.POLLIN)
        deadline = time.monotonic() + _FORK_SECONDS
        if self._first_bytes is None:
            deadline = max(deadline, self._born + _IMPORT_SECONDS)
        while True:
            ready = dict(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))
            if self._control.fileno() in ready:
                self._read_control()
                deadline = time.monotonic() + _FORK_SECONDS
            elif self._gate.fileno() in ready:
                return _Forked(self._gate.recv(MAX_MESSAGE))
            else:
                raise NoForkError("the fork server does not answer")

    def _read_control(self) -> None:
        try:
            answer = self._control.recv(MAX_MESSAGE)
        except ConnectionResetError:  # it ended before it read everything
            answer = b""
        if not answer:
            raise NoForkError("the fork server has ended")
        if answer != READY:
            raise UnfitError(answer.decode())
        self._first_bytes = linux.resident_bytes(self.pid)


class _Forked:
    """A child that another process forked; its own message describes it."""

    def __init__(self, message: bytes) -> None:
        if not message:
            raise NoForkError("the forked process ended at once")
        pid, intermediate, fault = message.decode().split(" ", 2)
        self.pid, self._intermediate = int(pid), int(intermediate)
        # Raises ChildProcessError if it is not a child.
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        self.returncode: int | None = None
        if fault:
            self.end()
            raise UnfitError(fault)

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.wait()
        # If the server was killed at that moment, this process adopted the intermediate one, too.
        with suppress(ChildProcessError):
            os.waitpid(self._intermediate, os.WNOHANG)


def _newest_source() -> tuple[int, int]:
    """Changes when a source file is changed, added or removed."""
    times = []
    for package in (service, worker):
        for file in Path(package.__path__[0]).rglob("*.py"):
            with suppress(OSError):  # it was just removed
                times.append(file.stat().st_mtime_ns)
    return len(times), max(times)
