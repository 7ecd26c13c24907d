"""Uses Linux's prctl(2). On other systems these functions do nothing."""

import ctypes
import os
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_PR_SET_CHILD_SUBREAPER: Final = 36
# Loaded once, here: nothing may be imported between fork and exec.
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with_parent(parent: int, death_signal: signal.Signals = signal.SIGKILL) -> None:
    """Send this process `death_signal` when its parent ends, or now if `parent` has ended already.

    Call it right after the fork; forks do not inherit it. The parent is a thread: the one that
    forked, or the main thread of a process that has adopted this one.
    """
    if _LIBC is None:
        return
    _LIBC.prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), death_signal)


def adopt_orphans() -> None:
    """Make descendants whose parent ends children of this process."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def forbid_inspection() -> None:
    """Let no other process of this user read this one's memory and environment, or trace it.

    Forks inherit it, programs that they start do not. It also prevents core dumps. From then on
    root owns this process's files in /proc: it cannot write them any more, for example to enter a
    user namespace.
    """
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
