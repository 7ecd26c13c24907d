"""Finds and ends what is left of a stack whose `up` was killed.

A death signal reaches the children of a process, not theirs, and both processes of `up` can be
killed at once. So all processes of a stack carry a mark in the environment, which they inherit
wherever they end up in the process tree, and those whose environment is closed to others have it in
their command line. Linux only; elsewhere nothing is found.
"""

import os
import secrets
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from service.system.child_environment import STACK_MARK

# For Python's -X, which knows no such option and ignores it.
_OPTION: Final = "finetune-stack"
_SWEEP_SECONDS: Final = 30.0


class Mark:
    """Of the processes of one run of `up`."""

    def __init__(self, home: Path) -> None:
        self._home = home.resolve()
        self._run = secrets.token_hex(8)

    def environ(self) -> dict[str, str]:
        return {STACK_MARK: f"{self._run}:{self._home}"}

    def options(self) -> list[str]:
        """For processes of ours, whose environment only root can read."""
        return ["-X", f"{_OPTION}={self._run}:{self._home}"]

    def end_all(self) -> None:
        """SIGKILL what carries this mark, until nothing is left."""
        _end(lambda value: value == f"{self._run}:{self._home}")

    def end_earlier_ones(self) -> None:
        """SIGKILL what earlier runs left; whoever calls this holds the lock of the home."""
        _end(
            lambda value: (
                value.partition(":")[2] == str(self._home) and not value.startswith(self._run)
            )
        )


def _end(is_meant: Callable[[str], bool]) -> None:
    """Bounded, because a process in an uninterruptible system call only ends when that returns."""
    deadline = time.monotonic() + _SWEEP_SECONDS
    while _kill(is_meant) and time.monotonic() < deadline:
        time.sleep(0.02)


def _kill(is_meant: Callable[[str], bool]) -> bool:
    """Whether any was found."""
    found = False
    for folder in Path("/proc").glob("[0-9]*"):
        # The descriptor belongs to this very process, whoever is given its number next.
        with suppress(OSError):
            process = os.pidfd_open(int(folder.name))
            try:
                if is_meant(_mark_of(folder)):
                    signal.pidfd_send_signal(process, signal.SIGKILL)
                    found = True
            finally:
                os.close(process)
    return found


def _mark_of(folder: Path) -> str:
    """Empty without a mark, of a process that has ended, and of another user's."""
    try:
        words, start = (folder / "environ").read_bytes(), f"{STACK_MARK}="
    except PermissionError:
        words, start = (folder / "cmdline").read_bytes(), f"{_OPTION}="
    for word in words.split(b"\0"):
        if word.startswith(start.encode()):
            return os.fsdecode(word.removeprefix(start.encode()))
    return ""
