"""Landlock: the kernel's access rules that an ordinary process sets for itself and its children.

Documentation: https://docs.kernel.org/userspace-api/landlock.html
"""

import errno
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from worker.sandbox import system_calls
from worker.sandbox.view import Layer, View

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION: Final = 1
_PATH_BENEATH, _NET_PORT = 1, 2

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = (1 << bit for bit in range(4))
_MAKE_CHARACTER_DEVICE, _MAKE_FIFO, _MAKE_BLOCK_DEVICE = 1 << 6, 1 << 10, 1 << 11
_TRUNCATE, _DEVICE_CONTROL = 1 << 14, 1 << 15
_READ: Final = _EXECUTE | _READ_FILE | _READ_DIR
# A FIFO would block whoever reads it, and stages need none.
_NEVER: Final = _MAKE_CHARACTER_DEVICE | _MAKE_BLOCK_DEVICE | _MAKE_FIFO
_OF_FILES: Final = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _DEVICE_CONTROL
_BIND, _CONNECT = 1, 2
_ABSTRACT_SOCKETS, _SIGNALS = 1, 2

FILES, TRUNCATION, NETWORK, DEVICES, SCOPES = 1, 3, 4, 5, 6
"""The version of the interface from which Landlock covers each of these."""
_SKIPPED: Final = (errno.ENOENT, errno.EACCES, errno.ENOTDIR, errno.ELOOP)
_PROC: Final = Path("/proc")
_EPHEMERAL: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")


def version() -> int:
    """Of the kernel's interface; 0 if it has no Landlock or does not use it."""
    try:
        return system_calls.call(_CREATE_RULESET, None, 0, _ASK_VERSION)
    except OSError:
        return 0


def restrict(view: View) -> None:
    """Confine this process and its future children to `view`; cannot be undone.

    /proc may be read: ranks and loader workers need their own folder there, which no rule can name
    before they exist. What it shows of the memory, the environment and the open files of a process
    outside, Landlock refuses like an attempt to trace that process.
    """
    abi = version()
    ruleset = _create(abi, limits_ports=_limits_ports(view))
    try:
        for path, rights in _rules(view):
            _allow(ruleset, view.trusted(path), path, rights & _handled(abi))
        if abi >= NETWORK and _limits_ports(view):
            _allow_ports(ruleset, view)
        system_calls.prctl(system_calls.PR_SET_NO_NEW_PRIVS, 1)
        system_calls.call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _rules(view: View) -> Iterator[tuple[Path, int]]:
    """Paths, and the rights on them and on everything below."""
    for path in (*view.read, _PROC):
        yield path, _READ
    for path in view.listed:
        yield path, _READ_DIR
    for path in view.write:
        yield path, ~_NEVER
    for path in (*view.devices, _PROC / "self"):
        yield path, _READ | _WRITE_FILE | _TRUNCATE | _DEVICE_CONTROL


def _limits_ports(view: View) -> bool:
    """Not in a network of its own, which has nothing else to connect to."""
    return view.network or Layer.NAMESPACES not in view.layers


def _create(abi: int, *, limits_ports: bool) -> int:
    network = _BIND | _CONNECT if limits_ports and abi >= NETWORK else 0
    scopes = _ABSTRACT_SOCKETS | _SIGNALS if abi >= SCOPES else 0
    fields = [_handled(abi)] + ([network] if abi >= NETWORK else [])
    attributes = struct.pack(f"{len(fields)}Q", *fields)
    if abi >= SCOPES:
        attributes = struct.pack("QQQ", _handled(abi), network, scopes)
    return system_calls.call(_CREATE_RULESET, attributes, len(attributes), 0)


def _handled(abi: int) -> int:
    """All rights on files that this version knows."""
    return (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(abi, 16)) - 1


def _allow(ruleset: int, trusted: Path, path: Path, rights: int) -> None:
    try:
        descriptor = _open(trusted, path)
    except OSError as error:
        if error.errno in _SKIPPED:
            return
        raise
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= _OF_FILES
        if rights:
            rule = struct.pack("=Qi", rights, descriptor)
            system_calls.call(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0)
    finally:
        os.close(descriptor)


def _open(trusted: Path, path: Path) -> int:
    """The path itself: no link is followed behind `trusted`."""
    folder = os.open(trusted, os.O_PATH | os.O_CLOEXEC)
    if trusted == path:
        return folder
    try:
        return system_calls.open_below(folder, str(path.relative_to(trusted)))
    finally:
        os.close(folder)


def _allow_ports(ruleset: int, view: View) -> None:
    """Ranks find each other at ports that the kernel chooses: Landlock cannot name those of one
    host, so it allows them all, and no well-known port."""
    if view.network:
        for port in sorted(set(view.ports)):
            _allow_port(ruleset, port, _CONNECT)
    elif view.ranks:
        _allow_port(ruleset, 0, _BIND)
        first, last = _EPHEMERAL.read_text(encoding="ascii").split()
        for port in range(int(first), int(last) + 1):
            _allow_port(ruleset, port, _BIND | _CONNECT)


def _allow_port(ruleset: int, port: int, rights: int) -> None:
    system_calls.call(_ADD_RULE, ruleset, _NET_PORT, struct.pack("QQ", rights, port), 0)
