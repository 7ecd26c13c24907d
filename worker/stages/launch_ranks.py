"""`python -m worker.stages.launch_ranks <processes> <module> <request.json>`: one stage in several
ranks.

This process runs between the supervisor and the ranks: it forwards signals, ends all ranks when one
has failed, and exits like the rank that ended first. torchrun's agent does the same, but does not
fork ranks from a process that has imported torch.
"""

import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from service.contract.failures import Failure, FailureCode
from service.contract.stage.events import Failed
from service.contract.stage.stages import EVENT_FD_VARIABLE
from service.system import inherited_secrets, own_packages
from service.system.prctl import die_with_parent, forbid_inspection
from worker.devices.cpus import cores
from worker.stages import rank_env
from worker.stages.base import (
    EXIT_FAILED,
    EXIT_FINISHED,
    EXIT_STOPPED,
    Channel,
    Stopped,
    raise_stopped,
)

_HOST: Final = "127.0.0.1"
_STOP_SECONDS: Final = 5
"""From SIGTERM to SIGKILL of a rank; less than the supervisor allows this process."""
_FOLLOW_SECONDS: Final = 30
"""From the end of a rank that was asked to stop to the end of the others."""
_POLL_SECONDS: Final = 0.02

StartRank = Callable[[list[str], Mapping[str, str]], int]
"""Start `[module, *arguments]` as a child in its own session, bound to this process, with these
environment variables added to ours; returns its pid."""


def main(start: StartRank) -> NoReturn:
    die_with_parent(os.getppid())
    if inherited_secrets.adopt():
        forbid_inspection()
    os._exit(launch(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), start))


def launch(processes: int, module: str, request: Path, start: StartRank) -> int:
    """Run the stage to its end; its exit status."""
    channel = Channel(int(os.environ[EVENT_FD_VARIABLE]))
    folder = request.parent / "ranks"
    folder.mkdir(exist_ok=True)
    failure_file = folder / "failure.json"
    failure_file.unlink(missing_ok=True)
    group = _Ranks()
    signal.signal(signal.SIGUSR1, group.forward)
    signal.signal(signal.SIGTERM, raise_stopped)
    try:
        meeting_point = socket.create_server((_HOST, 0))
        port = meeting_point.getsockname()[1]
        for number in range(processes):
            variables = rank_env.environment(number, processes, (_HOST, port), failure_file)
            group.add(start([module, str(request)], _defaults(processes) | variables))
        # After the ranks: the store has threads, and a fork does not copy threads.
        store = TCPStore(
            _HOST,
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=meeting_point.detach(),
        )
        failed = group.first_failure()
        del store  # only now: deleting the last reference ends the store
    except Stopped:
        return EXIT_STOPPED
    finally:
        group.end()
    return (
        EXIT_FINISHED if failed is None else _end(failed, rank_env.reported(failure_file), channel)
    )


class _Ranks:
    """Processes that this one has started."""

    def __init__(self) -> None:
        self._alive: set[int] = set()

    def add(self, pid: int) -> None:
        self._alive.add(pid)

    def first_failure(self) -> int | None:
        """The exit status of the first rank to fail, or minus the signal's number; None if none."""
        while self._alive:
            pid, status = os.waitpid(-1, 0)
            self._alive.discard(pid)
            if os.waitstatus_to_exitcode(status) == EXIT_STOPPED:
                # The others will stop too, and one of them still has to report the checkpoint.
                self._await(_FOLLOW_SECONDS)
            if status:
                return os.waitstatus_to_exitcode(status)
        return None

    def forward(self, number: int, _frame: FrameType | None = None) -> None:
        """Forward a soft stop to the ranks, which are not in this process's group."""
        if not self._alive:
            sys.exit(EXIT_STOPPED)  # nothing is lost before the ranks start
        self._signal(number)

    def end(self) -> None:
        """End the remaining ranks, after a few seconds to end by themselves."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._signal(signal.SIGTERM)
        self._await(_STOP_SECONDS)
        self._signal(signal.SIGKILL)
        self._await(math.inf)

    def _signal(self, number: int) -> None:
        for pid in self._alive:
            with suppress(ProcessLookupError):  # already reaped
                os.kill(pid, number)

    def _await(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._reap() and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)

    def _reap(self) -> bool:
        """Reap the ranks that have ended; whether others still run."""
        for pid in list(self._alive):
            if os.waitpid(pid, os.WNOHANG)[0]:
                self._alive.remove(pid)
        return bool(self._alive)


def new_interpreter(words: list[str], variables: Mapping[str, str]) -> int:
    """Start a rank in a new interpreter, which has to import everything."""
    command = own_packages.python("worker.processes.parent_death", str(os.getpid()), *words)
    # Each rank inherits the event pipe and the locks on the GPUs.
    os.set_inheritable(int(os.environ[EVENT_FD_VARIABLE]), True)
    secrets = inherited_secrets.received()
    seen = {name: value for name, value in os.environ.items() if name not in secrets}
    with inherited_secrets.pipe(secrets) as (passed, descriptors):
        for descriptor in descriptors:
            os.set_inheritable(descriptor, True)
        return subprocess.Popen(
            command,
            env={**seen, **variables, **passed},
            stdin=subprocess.DEVNULL,
            close_fds=False,
            start_new_session=True,
        ).pid


def _defaults(processes: int) -> dict[str, str]:
    """Environment variables that the operator has not set."""
    ours = {"OMP_NUM_THREADS": str(max(1, cores() // processes))}
    if sys.platform == "linux":
        # All ranks are on this machine, whose host name may not resolve.
        ours["GLOO_SOCKET_IFNAME"] = "lo"
    return {name: os.environ.get(name, value) for name, value in ours.items()}


def _end(exit_code: int, failure: Failure | None, channel: Channel) -> int:
    """Report the failure of the rank that ended first, else return its exit status."""
    if failure is None and exit_code == rank_env.EXIT_PEER_LOST:
        message = "The processes of the training lost their connection to each other"
        failure = Failure.from_code(FailureCode.WORKER_LOST, message)
    if failure is not None:
        channel.send(Failed(failure=failure))
        return EXIT_FAILED
    return exit_code if exit_code >= 0 else 128 - exit_code


if __name__ == "__main__":
    main(new_interpreter)
