"""A stage in two ranks, without torch; `metadata.behaviour` of its job directs each."""

import os
import signal
import sys
import time
from pathlib import Path

from service.contract.failures import FailureCode, StageError
from service.contract.stage.events import Notice
from service.contract.stage.stages import PublishResult, StageRequest
from worker.stages import rank_env
from worker.stages.base import Channel, Stopped, run_stage

PEER_LOST = "[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer"


def main(request: StageRequest, channel: Channel) -> PublishResult | None:
    rank = rank_env.number()
    sys.stderr.write(f"rank {rank} speaks\n")
    channel.send(Notice(message=f"rank {rank}", data={"stdin": sys.stdin.read()}))
    other = _meet(request.workspace, rank or 0)
    behaviour = request.spec.metadata["behaviour"]
    if behaviour == "one is killed":
        _lose(other, is_killed=rank == 1)
    elif behaviour == "stops softly":
        _stop(request.workspace, channel, rank or 0)
    elif behaviour == "waits":
        (request.workspace / f"at-work-{rank}").touch()
        time.sleep(60)
    elif behaviour != "finishes":
        _fail(behaviour, rank)
    return PublishResult() if rank == 0 else None


def _meet(folder: Path, rank: int) -> int:
    """The other's process id, once both have reached this line."""
    own = folder / f"{rank}"
    own.write_text(str(os.getpid()))
    own.rename(folder / f"pid-{rank}")
    other = folder / f"pid-{1 - rank}"
    while not other.exists():
        time.sleep(0.01)
    return int(other.read_text())


def _lose(other: int, *, is_killed: bool) -> None:
    if is_killed:
        os.kill(os.getpid(), signal.SIGKILL)
    while is_alive(other):
        time.sleep(0.01)
    raise RuntimeError(PEER_LOST)


def _stop(folder: Path, channel: Channel, rank: int) -> None:
    channel.soft_stop.postpone()
    (folder / f"at-work-{rank}").touch()
    while not channel.soft_stop():
        time.sleep(0.01)
    time.sleep(0.5 if rank == 0 else 0)
    channel.send(Notice(message="a checkpoint"))
    raise Stopped


def _fail(behaviour: str, rank: int | None) -> None:
    if behaviour == "one fails" and rank == 1:
        raise StageError(FailureCode.EMPTY_DATASET, "nothing here", n=3)
    if behaviour == "all fail":
        raise StageError(FailureCode.DISK_FULL, f"of rank {rank}")
    if behaviour == "all lose each other":
        raise RuntimeError(PEER_LOST)
    time.sleep(60)


def is_alive(pid: int) -> bool:
    """Not a zombie either."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


if __name__ == "__main__":
    run_stage(main)
