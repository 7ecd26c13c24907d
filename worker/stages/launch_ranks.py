"""`python -m worker.stages.launch_ranks <processes> <module> <request.json>`: one stage in several
ranks.

This process stands between them and the supervisor: it passes signals on, ends them all when one
has ended badly, and its own end is that of the rank that ended first. torchrun's agent would do as
much, but not with ranks that are forked from a process which has imported torch.
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

from service.contract.events import Failed
from service.contract.failures import Failure, FailureCode
from service.contract.stages import EVENT_FD_VARIABLE
from service.prctl import die_with_parent
from worker.devices.cpus import cores
from worker.stages import rank_env
from worker.stages.base import EXIT_FAILED, EXIT_FINISHED, EXIT_STOPPED, Channel, Stopped

_HOST: Final = "127.0.0.1"
_STOP_SECONDS: Final = 5
"""From SIGTERM to SIGKILL of a rank; less than what the supervisor gives this process."""
_FOLLOW_SECONDS: Final = 30
"""From the end of a rank that was asked to stop to that of the others."""
_POLL_SECONDS: Final = 0.02

StartRank = Callable[[list[str], Mapping[str, str]], int]
"""Start `[module, *arguments]` as a child in a session of its own, bound to this process, with
these variables beside our own; its pid."""


def main(start: StartRank) -> NoReturn:
    die_with_parent(os.getppid())
    os._exit(launch(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), start))


def launch(processes: int, module: str, request: Path, start: StartRank) -> int:
    """Run the stage to its end; the exit status that stands for it."""
    channel = Channel(int(os.environ[EVENT_FD_VARIABLE]))
    folder = request.parent / "ranks"
    folder.mkdir(exist_ok=True)
    failure_file = folder / "failure.json"
    failure_file.unlink(missing_ok=True)
    group = _Ranks()
    signal.signal(signal.SIGUSR1, group.pass_on)
    signal.signal(signal.SIGTERM, _raise_stopped)
    try:
        meeting_point = socket.create_server((_HOST, 0))
        port = meeting_point.getsockname()[1]
        for number in range(processes):
            variables = rank_env.environment(number, processes, (_HOST, port), failure_file)
            group.add(start([module, str(request)], _defaults(processes) | variables))
        # Not before them: it has threads, and a fork takes none along.
        store = TCPStore(
            _HOST,
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=meeting_point.detach(),
        )
        bad = group.first_bad_end()
        del store  # here, not before: it ends with its last name
    except Stopped:
        return EXIT_STOPPED
    finally:
        group.end()
    return EXIT_FINISHED if bad is None else _end(bad, rank_env.reported(failure_file), channel)


class _Ranks:
    """Processes that this one has started."""

    def __init__(self) -> None:
        self._alive: set[int] = set()

    def add(self, pid: int) -> None:
        self._alive.add(pid)

    def first_bad_end(self) -> int | None:
        """Wait for it: its exit status, or minus the signal's number. None: all ended well."""
        while self._alive:
            pid, status = os.waitpid(-1, 0)
            self._alive.discard(pid)
            if os.waitstatus_to_exitcode(status) == EXIT_STOPPED:
                # So will the others, and one of them still has to tell of the checkpoint.
                self._await(_FOLLOW_SECONDS)
            if status:
                return os.waitstatus_to_exitcode(status)
        return None

    def pass_on(self, number: int, _frame: FrameType | None = None) -> None:
        """A soft stop is for the ranks, which are no part of this process's group."""
        if not self._alive:
            sys.exit(EXIT_STOPPED)  # before the start nothing is lost
        self._signal(number)

    def end(self) -> None:
        """Those that are left, with some seconds to end by themselves."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._signal(signal.SIGTERM)
        self._await(_STOP_SECONDS)
        self._signal(signal.SIGKILL)
        self._await(math.inf)

    def _signal(self, number: int) -> None:
        for pid in self._alive:
            with suppress(ProcessLookupError):  # waited for, and not yet crossed out
                os.kill(pid, number)

    def _await(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._reap() and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)

    def _reap(self) -> bool:
        """Whether any is still to end."""
        for pid in list(self._alive):
            if os.waitpid(pid, os.WNOHANG)[0]:
                self._alive.remove(pid)
        return bool(self._alive)


def new_interpreter(words: list[str], variables: Mapping[str, str]) -> int:
    """A rank that has everything to import."""
    command = ["-P", "-m", "worker.processes.parent_death", str(os.getpid()), *words]
    # Each rank gets the event pipe, and the locks on the GPUs: what this process may pass on.
    os.set_inheritable(int(os.environ[EVENT_FD_VARIABLE]), True)
    return subprocess.Popen(
        [sys.executable, *command],
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        close_fds=False,
        start_new_session=True,
    ).pid


def _defaults(processes: int) -> dict[str, str]:
    """Where the operator has set nothing else."""
    ours = {"OMP_NUM_THREADS": str(max(1, cores() // processes))}
    if sys.platform == "linux":
        # All ranks are on this machine, whose name need not resolve.
        ours["GLOO_SOCKET_IFNAME"] = "lo"
    return {name: os.environ.get(name, value) for name, value in ours.items()}


def _end(exit_code: int, failure: Failure | None, channel: Channel) -> int:
    """Tell how the rank that ended first did: what it said, else its own exit status."""
    if failure is None and exit_code == rank_env.EXIT_PEER_LOST:
        message = "The processes of the training lost each other"
        failure = Failure.of(FailureCode.WORKER_LOST, message)
    if failure is not None:
        channel.send(Failed(failure=failure))
        return EXIT_FAILED
    return exit_code if exit_code >= 0 else 128 - exit_code


def _raise_stopped(_signal: int, _frame: FrameType | None) -> None:
    raise Stopped


if __name__ == "__main__":
    main(new_interpreter)
