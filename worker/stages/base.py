"""Shared by all stages: reading the request, the event pipe to the supervisor, and the exit."""

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from pathlib import Path
from types import FrameType

from pydantic import BaseModel

from service.contract.failures import Failure, StageError
from service.contract.fields.section import Acceptance
from service.contract.stage.events import Failed, Finished, StageEvent
from service.contract.stage.stages import EVENT_FD_VARIABLE, StageRequest
from service.system import inherited_secrets
from service.system.prctl import die_with_parent, forbid_inspection
from worker import failures
from worker.stages import rank_env

EXIT_FINISHED, EXIT_FAILED, EXIT_STOPPED = 0, 1, 143
MAX_EVENT_BYTES = 1024 * 1024


class Stopped(BaseException):  # not an Error: the supervisor requested it
    """Raised in the main thread when the supervisor sends SIGTERM, or SIGUSR1 (`SoftStop`)."""


class _Manner(Enum):
    """How the stage reacts to a soft stop at the moment."""

    AT_ONCE = auto()
    NOTED = auto()
    IGNORED = auto()


class SoftStop:
    """The supervisor's request (SIGUSR1) to stop at a point where nothing is lost.

    By default the stage stops at once, as for SIGTERM. Calling it returns whether it was requested.
    """

    def __init__(self) -> None:
        self._manner = _Manner.AT_ONCE
        self._is_requested = False

    def __call__(self) -> bool:
        return self._is_requested

    def request(self) -> None:
        """Called in the main thread. Raises Stopped if the stage has nothing to lose."""
        if self._manner is _Manner.IGNORED:
            return
        self._is_requested = True
        if self._manner is _Manner.AT_ONCE:
            raise Stopped

    def postpone(self) -> None:
        """From here on the stage itself checks whether to stop."""
        self._manner = _Manner.NOTED

    def stop_if_requested(self) -> None:
        """From here on a stop loses nothing. Raises Stopped if one was requested before."""
        self._manner = _Manner.AT_ONCE
        if self._is_requested:
            raise Stopped

    def ignore(self) -> None:
        """From here on the stage is nearly done, so it finishes instead of stopping."""
        self._manner = _Manner.IGNORED
        self._is_requested = False


class EventTooLargeError(ValueError):
    """The event is larger than a supervisor should hold in memory."""


class Channel:
    """Sends events, one JSON line each, to the supervisor. Safe to use from several threads.

    `soft_stop` is the supervisor's request to stop; `is_silent`: another rank sends the same.
    """

    def __init__(self, descriptor: int, *, is_silent: bool = False) -> None:
        self.soft_stop = SoftStop()
        self._descriptor = descriptor
        self._is_silent = is_silent
        os.set_inheritable(descriptor, False)  # no grandchild may keep the pipe open
        self._lock = threading.Lock()

    def send(self, event: StageEvent) -> None:
        """Write one whole line. EventTooLargeError beyond MAX_EVENT_BYTES.

        If the pipe has no reader, the supervisor has ended, and this process ends at once.
        """
        if self._is_silent:
            return
        line = event.model_dump_json().encode() + b"\n"
        if len(line) > MAX_EVENT_BYTES:
            raise EventTooLargeError(
                f"a {event.type} event has {len(line)} bytes; the limit is {MAX_EVENT_BYTES}"
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


def run_stage(main: Callable[[StageRequest, Channel], BaseModel | None]) -> None:
    """Run `main` on the request named in argv; report its end on the channel and exit.

    Of a stage in several processes the first has the result, and None comes from the others.
    The exit status is EXIT_FINISHED, EXIT_FAILED (a Failed event was sent) or EXIT_STOPPED.
    Tracebacks go to stderr, which is the job's log, never into an event.
    """
    die_with_parent(os.getppid())
    channel = Channel(int(os.environ[EVENT_FD_VARIABLE]), is_silent=(rank_env.number() or 0) > 0)
    signal.signal(signal.SIGTERM, raise_stopped)
    signal.signal(signal.SIGUSR1, lambda _signal, _frame: channel.soft_stop.request())
    if inherited_secrets.adopt():
        forbid_inspection()
    try:
        status = _run(main, channel)
    except Stopped:  # also out of the midst of reporting a failure
        status = EXIT_STOPPED
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # the log's disk is full; the event has reported the error
            stream.flush()
    # Skip interpreter teardown: library threads must not delay or change the end of a stage.
    os._exit(status)


def _run(main: Callable[[StageRequest, Channel], BaseModel | None], channel: Channel) -> int:
    try:
        given = Path(sys.argv[1]).read_bytes()
        request = StageRequest.model_validate_json(given, context=Acceptance())
        result = main(request, channel)
        if result is not None:
            channel.send(Finished(result=result.model_dump(mode="json")))
    except Stopped:
        raise
    except BaseException as error:
        with suppress(OSError):  # a full disk under the log must not prevent the event
            traceback.print_exc()
        if rank_env.number() is not None:
            return _end_of_rank(error)
        channel.send(Failed(failure=failures.small(failure_of(error))))
        return EXIT_FAILED
    return EXIT_FINISHED


def _end_of_rank(error: BaseException) -> int:
    if rank_env.is_peer_lost(error):
        rank_env.await_termination()
        return rank_env.EXIT_PEER_LOST
    rank_env.report(failures.small(failure_of(error)))
    return EXIT_FAILED


def failure_of(error: BaseException) -> Failure:
    """The failure that the stage reported itself, else the one for the exception."""
    return error.failure if isinstance(error, StageError) else failures.from_exception(error)


def raise_stopped(_signal: int, _frame: FrameType | None) -> None:
    raise Stopped
