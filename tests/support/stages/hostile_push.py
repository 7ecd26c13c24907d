"""A push that does what no push of ours does: `python hostile_push.py KIND`."""

import os
import signal
import sys
import time
from pathlib import Path

from service.contract.stage.events import Finished, ReadyToCommit
from service.contract.stage.stages import EVENT_FD_VARIABLE
from tests.support.stages import bombs
from worker.stages.base import Channel


def main(kind: str) -> None:
    channel = Channel(int(os.environ[EVENT_FD_VARIABLE]))
    if kind == "form":
        channel.send(Finished(result={"hub_url": ["no text"]}))
    elif kind == "asks twice":
        channel.send(ReadyToCommit())
        channel.send(ReadyToCommit())
        time.sleep(1)
        channel.send(Finished(result={}))
    elif kind.startswith("oom:"):  # as when the kernel counts a kill, then kills
        Path(kind.removeprefix("oom:")).write_text("nr_free_pages 1\noom_kill 5\n")
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        getattr(bombs, kind)()


if __name__ == "__main__":
    main(sys.argv[1])
