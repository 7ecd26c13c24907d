"""A command that leaves no process behind, and free ports.

Without Linux's prctl and /proc no descendant is found; an orderly stop works everywhere.
"""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from service.system.prctl import adopt_orphans, die_with_parent

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def descendants(root: int) -> list[int]:
    """Process ids below `root`, nearest first, including ended ones that wait for their parent."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name, in brackets, may hold anything: the fields begin after the last bracket.
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it ended while we looked
            continue
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found: list[int] = []
    level = [root]
    while level:
        level = [child for parent in level for child in children.get(parent, [])]
        found += level
    return found


def kill_descendants(spared: int) -> None:
    """SIGKILL everything below this process but the child `spared`, until nothing is left."""
    while below := [process for process in descendants(os.getpid()) if process != spared]:
        for process in below:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        _reap()
        time.sleep(0.01)


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


class StopEvent(threading.Event):
    """Set when a stop is requested; a second request makes it urgent."""

    is_urgent = False

    def ask(self) -> None:
        if self.is_set():
            self.is_urgent = True
        self.set()


class _LastWatch:
    """A process that waits until all others that hold the pipe have ended, and then cleans up."""

    def __init__(self, clean_up: Callable[[], None]) -> None:
        self._clean_up = clean_up
        self._pipe = os.pipe()
        self.start()

    def start(self) -> None:
        reader, writer = self._pipe
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setsid()
                os.close(writer)
                for number in _STOP_SIGNALS:
                    signal.signal(number, signal.SIG_IGN)
                # A reader of the output of `up` waits only for the other two.
                with open(os.devnull, "r+b") as nothing:  # noqa: PTH123
                    for descriptor in range(3):
                        os.dup2(nothing.fileno(), descriptor)
                os.read(reader, 1)
                self._clean_up()
            finally:
                os._exit(0)

    def release(self) -> None:
        """Nothing is started any more: let the process clean up, and wait for it."""
        os.close(self._pipe[1])
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        os.close(self._pipe[0])


def run_guarded(main: Callable[[StopEvent], int], clean_up: Callable[[], None]) -> int:
    """Run `main` in a forked child of its own session; leave no process, whoever is killed.

    This process only waits. SIGINT or SIGTERM sent to either asks the event that `main` is given.
    If the child is killed, all that it started falls to this process and is killed here; if this
    process is killed, the child stops in order; when both have ended, in whatever way, a third
    process calls `clean_up`. Returns `main`'s status, or 128 + the number of the signal that ended
    the child.
    """
    adopt_orphans()
    sys.stdout.flush()
    sys.stderr.flush()
    # Blocked until the handlers are set, or a Ctrl-C in between would end only one of the two.
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    last_watch = _LastWatch(clean_up)
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        _run_child(main, parent)
    _on_stop_signals(lambda *_: os.kill(child, signal.SIGTERM))
    status = _wait_for(child, last_watch)
    _on_stop_signals(lambda *_: None)  # the child has ended, and its number may be another's
    kill_descendants(spared=last_watch.pid)
    last_watch.release()
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _wait_for(child: int, last_watch: _LastWatch) -> int:
    """The child's status; meanwhile the last watch is started again when it is killed."""
    while True:
        ended, status = os.wait()
        if ended == child:
            return status
        if ended == last_watch.pid:
            time.sleep(0.1)
            last_watch.start()


def _run_child(main: Callable[[StopEvent], int], parent: int) -> NoReturn:
    status = 1
    try:
        os.setsid()
        stop = StopEvent()
        _on_stop_signals(lambda *_: stop.ask())
        die_with_parent(parent, signal.SIGTERM)
        status = main(stop)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        # Not a plain return: the rest of the call stack belongs to the parent.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _on_stop_signals(handler: Callable[[int, FrameType | None], object]) -> None:
    for number in _STOP_SIGNALS:
        signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)


def free_port(host: str = "127.0.0.1") -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def port_is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
