"""What the three stages share: their request, the pipe to the supervisor, and how they end."""

import ctypes
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from pydantic import BaseModel

from service.contract.events import Failed, Finished, StageEvent
from service.contract.failures import StageError
from service.contract.stages import EVENT_FD_VARIABLE, StageRequest
from worker import failures

EXIT_FINISHED, EXIT_FAILED, EXIT_STOPPED = 0, 1, 143
_PR_SET_PDEATHSIG = 1


class Stopped(BaseException):  # not an Error: the supervisor asked for it
    """Raised in the main thread when the supervisor sends SIGTERM."""


class Channel:
    """Sends events, one JSON line each, to the supervisor. Safe to use from several threads."""

    def __init__(self, descriptor: int) -> None:
        self._pipe = os.fdopen(descriptor, "wb", buffering=0)
        self._lock = threading.Lock()

    def send(self, event: StageEvent) -> None:
        line = event.model_dump_json().encode() + b"\n"
        with self._lock:
            self._pipe.write(line)


def run_stage(main: Callable[[StageRequest, Channel], BaseModel]) -> None:
    """Run `main` on the request named in argv; report its end on the channel and exit.

    The exit status is EXIT_FINISHED, EXIT_FAILED (a Failed event was sent) or EXIT_STOPPED.
    Tracebacks go to stderr, which is the job's log, never into an event.
    """
    _die_with_parent()
    channel = Channel(int(os.environ[EVENT_FD_VARIABLE]))
    signal.signal(signal.SIGTERM, _raise_stopped)
    try:
        request = StageRequest.model_validate_json(Path(sys.argv[1]).read_bytes())
        result = main(request, channel)
        channel.send(Finished(result=result.model_dump(mode="json")))
        status = EXIT_FINISHED
    except Stopped:
        status = EXIT_STOPPED
    except BaseException as error:
        traceback.print_exc()
        failure = error.failure if isinstance(error, StageError) else failures.from_exception(error)
        channel.send(Failed(failure=failure))
        status = EXIT_FAILED
    sys.stdout.flush()
    sys.stderr.flush()
    # Skip interpreter teardown: library threads must not delay or change the end of a stage.
    os._exit(status)


def _raise_stopped(_signal: int, _frame: FrameType | None) -> None:
    raise Stopped


def _die_with_parent() -> None:
    """SIGKILL this process when its supervisor dies, so that no orphan keeps the GPU (Linux)."""
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the call
            os._exit(EXIT_STOPPED)
