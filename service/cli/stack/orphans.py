"""Finds and ends what is left of a stack whose `up` was killed.

The parts of a stack die with `up`, by death signals, but a process that does not ask for one, such
as what a stage's library starts, may not. So all processes of a stack carry a mark in the
environment, which they inherit wherever they end up in the process tree, and those whose
environment is closed to others have it in their command line: the next `up` of the home ends them.
Linux only; elsewhere nothing is found.
"""

import os
import secrets
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from service.child_environment import STACK_MARK

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

    def end_earlier_ones(self) -> None:
        """SIGKILL what earlier runs left; whoever calls this holds the lock of the home. Bounded: a
        process in an uninterruptible system call ends when that returns."""
        deadline = time.monotonic() + _SWEEP_SECONDS
        while self._kill_earlier_ones() and time.monotonic() < deadline:
            time.sleep(0.02)

    def _kill_earlier_ones(self) -> bool:
        """Whether any was found."""
        found = False
        for folder in Path("/proc").glob("[0-9]*"):
            # The descriptor belongs to this very process, whoever is given its number next.
            with suppress(OSError):
                process = os.pidfd_open(int(folder.name))
                try:
                    run, _, home = _mark_of(folder).partition(":")
                    if home == str(self._home) and run != self._run:
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
