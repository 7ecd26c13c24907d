"""`python -m worker.stages.launch <processes> <module> <request.json>`: one stage in several ranks.

torchrun's agent starts them and ends them all when one has ended badly. This process stands between
them and the supervisor: it passes signals on, and its own end is that of the rank that ended first.
"""

import logging
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Final

import psutil
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from service.contract.events import Failed
from service.contract.failures import Failure, FailureCode
from service.contract.stages import EVENT_FD_VARIABLE
from worker.cores import cores
from worker.lifeline import die_with_parent
from worker.stages import ranks
from worker.stages.base import EXIT_FAILED, EXIT_FINISHED, EXIT_STOPPED, Channel

_STOP_SECONDS: Final = 5
"""From SIGTERM to SIGKILL of a rank; less than what the supervisor gives this process."""


def main() -> None:
    die_with_parent(os.getppid(), EXIT_STOPPED)
    signal.signal(signal.SIGUSR1, _pass_on)
    os._exit(launch(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])))


def launch(processes: int, module: str, request: Path) -> int:
    """Run the stage to its end; the exit status that stands for it."""
    events = int(os.environ[EVENT_FD_VARIABLE])
    channel = Channel(events)
    folder = request.parent / "ranks"
    folder.mkdir(exist_ok=True)
    failure_file = folder / "failure.json"
    failure_file.unlink(missing_ok=True)
    os.dup2(events, ranks.EVENTS)
    os.environ[EVENT_FD_VARIABLE] = str(ranks.EVENTS)
    os.environ[ranks.FAILURE_FILE_VARIABLE] = str(failure_file)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // processes)))
    if sys.platform == "linux":
        # All ranks are on this machine, whose name need not resolve.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    try:
        rank = ("-P", "-m", "worker.lifeline", str(os.getpid()), module, str(request))
        elastic_launch(_config(processes, folder), sys.executable)(*rank)
    except SignalException:
        return EXIT_STOPPED
    except ChildFailedError as error:
        # The agent notes the rank that made it end the others before these.
        first = next(iter(error.failures.values()))
        return _end(first.exitcode, ranks.reported(failure_file), channel)
    return EXIT_FINISHED


def _config(processes: int, folder: Path) -> LaunchConfig:
    """As `torchrun --standalone`: a rendezvous of its own on a free port of this machine."""
    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=folder.parent.name,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(log_dir=str(folder)),
        signals_to_handle="SIGTERM,SIGINT",
        shutdown_timeout=_STOP_SECONDS,
    )


def _end(exit_code: int, failure: Failure | None, channel: Channel) -> int:
    """Tell how the rank that ended first did: what it said, else its own exit status."""
    if failure is None and exit_code == ranks.EXIT_PEER_LOST:
        message = "The processes of the training lost each other"
        failure = Failure.of(FailureCode.WORKER_LOST, message)
    if failure is not None:
        channel.send(Failed(failure=failure))
        return EXIT_FAILED
    return exit_code if exit_code >= 0 else 128 - exit_code


def _pass_on(number: int, _frame: FrameType | None) -> None:
    """A soft stop is for the ranks, which are no part of this process's group."""
    found = psutil.Process().children()
    if not found:
        sys.exit(EXIT_STOPPED)  # before the start nothing is lost
    for rank in found:
        rank.send_signal(number)


if __name__ == "__main__":
    main()
