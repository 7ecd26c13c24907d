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
from pathlib import Path
from types import FrameType
from typing import NoReturn

from service.prctl import adopt_orphans, die_with_parent

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def descendants(root: int) -> list[int]:
    """Process ids below `root`, nearest first; ended ones that nobody has waited for included."""
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


def kill_descendants() -> None:
    """SIGKILL everything below this process, until nothing is left."""
    while below := descendants(os.getpid()):
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
    """Set when a stop is asked for; asked for again, it is urgent."""

    is_urgent = False

    def ask(self) -> None:
        if self.is_set():
            self.is_urgent = True
        self.set()


def run_guarded(main: Callable[[StopEvent], int]) -> int:
    """Run `main` in a forked child of its own session; leave no process if either is killed.

    This process only waits. SIGINT or SIGTERM sent to either asks the event that `main` is given.
    If the child is killed, all that it started falls to this process and is killed here; if this
    process is killed, the child stops in order. Returns `main`'s status, or 128 + the number of the
    signal that ended the child.
    """
    adopt_orphans()
    sys.stdout.flush()
    sys.stderr.flush()
    # Blocked until the handlers are set, or a Ctrl-C in between would end only one of the two.
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        _run_child(main, parent)
    _on_stop_signals(lambda *_: os.kill(child, signal.SIGTERM))
    _, status = os.waitpid(child, 0)
    _on_stop_signals(lambda *_: None)  # the child is gone, and its number with it
    kill_descendants()
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


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
