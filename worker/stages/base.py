"""What the three stages share: their request, the pipe to the supervisor, and how they end."""

import ctypes
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType

from pydantic import BaseModel

from service.contract.events import Failed, Finished, StageEvent
from service.contract.failures import Failure, StageError
from service.contract.stages import EVENT_FD_VARIABLE, StageRequest
from worker import failures

EXIT_FINISHED, EXIT_FAILED, EXIT_STOPPED = 0, 1, 143
MAX_EVENT_BYTES = 1024 * 1024
_MAX_MESSAGE = 4000  # characters
_MAX_DETAILS = 20_000
_PR_SET_PDEATHSIG = 1


class Stopped(BaseException):  # not an Error: the supervisor asked for it
    """Raised in the main thread when the supervisor sends SIGTERM."""


class EventTooLargeError(ValueError):
    """An event that no supervisor should have to hold in memory."""


class Channel:
    """Sends events, one JSON line each, to the supervisor. Safe to use from several threads."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        os.set_inheritable(descriptor, False)  # no grandchild may keep the pipe open
        self._lock = threading.Lock()

    def send(self, event: StageEvent) -> None:
        """Write one whole line. EventTooLargeError beyond MAX_EVENT_BYTES.

        When the pipe has no reader the supervisor is gone: the process ends at once.
        """
        line = event.model_dump_json().encode() + b"\n"
        if len(line) > MAX_EVENT_BYTES:
            raise EventTooLargeError(
                f"a {event.type} event of {len(line)} bytes; {MAX_EVENT_BYTES} are allowed"
            )
        rest = memoryview(line)
        with self._lock:
            while rest:  # a signal may cut a write short
                rest = rest[self._write(rest) :]

    def _write(self, data: memoryview) -> int:
        try:
            return os.write(self._descriptor, data)
        except BrokenPipeError:
            os._exit(EXIT_STOPPED)


def run_stage(main: Callable[[StageRequest, Channel], BaseModel]) -> None:
    """Run `main` on the request named in argv; report its end on the channel and exit.

    The exit status is EXIT_FINISHED, EXIT_FAILED (a Failed event was sent) or EXIT_STOPPED.
    Tracebacks go to stderr, which is the job's log, never into an event.
    """
    _die_with_parent()
    channel = Channel(int(os.environ[EVENT_FD_VARIABLE]))
    signal.signal(signal.SIGTERM, _raise_stopped)
    try:
        status = _run(main, channel)
    except Stopped:  # also out of the midst of reporting a failure
        status = EXIT_STOPPED
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # a full disk under the log: the event has told it
            stream.flush()
    # Skip interpreter teardown: library threads must not delay or change the end of a stage.
    os._exit(status)


def _run(main: Callable[[StageRequest, Channel], BaseModel], channel: Channel) -> int:
    try:
        request = StageRequest.model_validate_json(Path(sys.argv[1]).read_bytes())
        result = main(request, channel)
        channel.send(Finished(result=result.model_dump(mode="json")))
    except Stopped:
        raise
    except BaseException as error:
        with suppress(OSError):  # a full disk under the log must not keep the event back
            traceback.print_exc()
        channel.send(Failed(failure=_small(failure_of(error))))
        return EXIT_FAILED
    return EXIT_FINISHED


def failure_of(error: BaseException) -> Failure:
    """What the stage itself says about its end, else what the exception stands for."""
    return error.failure if isinstance(error, StageError) else failures.from_exception(error)


def _small(failure: Failure) -> Failure:
    """`failure` with secrets masked, cut to what fits through the pipe and into an answer."""
    message = failures.mask(failure.message)[:_MAX_MESSAGE]
    details = failure.details if len(repr(failure.details)) <= _MAX_DETAILS else {}
    return failure.model_copy(update={"message": message, "details": details})


def _raise_stopped(_signal: int, _frame: FrameType | None) -> None:
    raise Stopped


def _die_with_parent() -> None:
    """SIGKILL this process when its supervisor dies, so that no orphan keeps the GPU (Linux)."""
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the call
            os._exit(EXIT_STOPPED)
