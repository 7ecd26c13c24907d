"""Namespaces of its own for a stage: users, processes, files, and for `train` the network.

Three processes: the one that calls `enter` stays outside as the supervisor's child; its child is
the first process of the namespace; and that one's child returns from `enter` as the stage.
"""

import array
import fcntl
import os
import signal
import socket
import struct
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

from service.system.prctl import die_with_parent
from worker.sandbox import monitor, mounts
from worker.sandbox import system_calls as sys_
from worker.sandbox.view import View

_MONITOR: Final = monitor.__file__
_GET_FLAGS, _SET_FLAGS = 0x8913, 0x8914
_IS_UP: Final = 0x1
_PASSED_ON: Final = (signal.SIGTERM, signal.SIGUSR1)
_FORKED: Final = b"."


def enter(view: View) -> None:
    """Returns in a new process, the stage; the calling one ends when the stage has ended.

    The calling process must have one thread. Raises OSError in the calling process if the kernel
    refuses; in the new ones an error ends the stage.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    _own_users(view)
    reader, writer = os.pipe()
    passed_on, passing_on = os.pipe()
    first = os.fork()
    if first:
        os.close(writer)
        die_with_parent(os.getppid())  # new credentials may have cleared it
        sys_.drop_capabilities()
        _pass_on_early_signals(reader)
        os.close(passing_on)
        _become_monitor("outside", first, reader)
    os.close(reader)
    os.close(passing_on)
    die_with_parent(os.getppid())
    mounts.enter(view)
    stage = os.fork()
    if stage:
        sys_.drop_capabilities()
        with suppress(BrokenPipeError):  # the one outside was killed; our death signal follows
            os.write(writer, _FORKED)
        _become_monitor("first", stage, writer)
    os.close(writer)
    os.read(passed_on, 1)  # ends once it is closed on the other side
    os.close(passed_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)


def _pass_on_early_signals(status: int) -> None:
    """Send the whole group again what arrived before the stage was one of it.

    The stage blocks these signals until then: one that it has already does not reach it twice.
    """
    if os.read(status, len(_FORKED)):
        for number in signal.sigpending() & set(_PASSED_ON):
            os.kill(0, number)


def _own_users(view: View) -> None:
    """The same user and group ids inside; without any power over what is outside."""
    user, group = os.geteuid(), os.getegid()
    kinds = sys_.NEW_USER | sys_.NEW_PIDS | sys_.NEW_IPC
    sys_.unshare(kinds if view.network else kinds | sys_.NEW_NETWORK)
    own = Path("/proc/self")
    (own / "setgroups").write_text("deny", encoding="ascii")
    (own / "uid_map").write_text(f"{user} {user} 1", encoding="ascii")
    (own / "gid_map").write_text(f"{group} {group} 1", encoding="ascii")
    if not view.network:
        _raise_loopback()


def _raise_loopback() -> None:
    """A new network has a loopback device, which is down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = array.array("b", struct.pack("16sh22x", b"lo", 0))
        fcntl.ioctl(any_socket, _GET_FLAGS, request)
        flags = struct.unpack_from("16sh", request)[1]
        struct.pack_into("16sh", request, 0, b"lo", flags | _IS_UP)
        fcntl.ioctl(any_socket, _SET_FLAGS, request)


def _become_monitor(role: str, child: int, status: int) -> NoReturn:
    """Start the small program, which holds nothing of the stage's: no pipe, no secret, no lock."""
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        os.set_inheritable(status, True)
        os.closerange(3, status)
        os.closerange(status + 1, os.sysconf("SC_OPEN_MAX"))
        words = [sys.executable, "-I", "-S", _MONITOR, role, str(child), str(status)]
        os.execve(sys.executable, words, {})
    finally:
        os._exit(1)
