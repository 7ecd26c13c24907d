"""The system calls that Python 3.11 does not have, with errno as OSError. Linux only."""

import ctypes
import os
import platform
import struct
from pathlib import Path
from typing import Final

NEW_MOUNTS: Final = 0x00020000
NEW_IPC: Final = 0x08000000
NEW_USER: Final = 0x10000000
NEW_PIDS: Final = 0x20000000
NEW_NETWORK: Final = 0x40000000

MS_BIND: Final = 0x1000
MS_REC: Final = 0x4000
MS_PRIVATE: Final = 0x40000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 0x1, 0x2, 0x4, 0x8, 0x20
MNT_DETACH: Final = 2
READ_ONLY, NO_SUID = 0x1, 0x2
"""Attributes for `set_mount_attributes`."""

PR_CAPBSET_DROP: Final = 24
PR_SET_NO_NEW_PRIVS: Final = 38
PR_CAP_AMBIENT: Final = 47
_AMBIENT_CLEAR_ALL: Final = 4

_OPENAT2: Final = 437
_BENEATH_WITHOUT_LINKS: Final = 0x08 | 0x04
_MOUNT_SETATTR: Final = 442
_PIVOT_ROOT: Final = {"x86_64": 155, "aarch64": 41}
_AT_FDCWD: Final = -100
_AT_RECURSIVE: Final = 0x8000
_CAPABILITY_VERSION_3: Final = 0x20080522
_LAST_CAPABILITY: Final = Path("/proc/sys/kernel/cap_last_cap")

# Loaded when this module is imported: the functions below run between a fork and the stage.
_LIBC = ctypes.CDLL(None, use_errno=True)


def call(number: int, *arguments: object) -> int:
    return _checked(_LIBC.syscall(number, *arguments))


def prctl(option: int, value: int = 0, third: int = 0) -> None:
    _checked(_LIBC.prctl(option, value, third, 0, 0))


def unshare(flags: int) -> None:
    _checked(_LIBC.unshare(flags))


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    type_ = None if kind is None else kind.encode()
    arguments = (os.fsencode(source), os.fsencode(target), type_, ctypes.c_ulong(flags))
    _checked(_LIBC.mount(*arguments, options.encode()), target)


def unmount(target: str) -> None:
    _checked(_LIBC.umount2(os.fsencode(target), MNT_DETACH), target)


def set_mount_attributes(target: str, attributes: int) -> None:
    """For `target` and every mount below it; other attributes stay. From Linux 5.12 on."""
    what = struct.pack("QQQQ", attributes, 0, 0, 0)
    call(_MOUNT_SETATTR, _AT_FDCWD, os.fsencode(target), _AT_RECURSIVE, what, len(what))


def open_below(folder: int, path: str) -> int:
    """A descriptor that only names `path` in the open `folder`; OSError if a link is on the way."""
    how = struct.pack("QQQ", os.O_PATH | os.O_CLOEXEC, 0, _BENEATH_WITHOUT_LINKS)
    return call(_OPENAT2, folder, os.fsencode(path), how, len(how))


def pivot_root(new: str, old: str) -> None:
    number = _PIVOT_ROOT.get(platform.machine())
    if number is None:
        raise OSError(f"pivot_root is not known for {platform.machine()}")
    call(number, os.fsencode(new), os.fsencode(old))


def drop_capabilities() -> None:
    """Give up root's powers for good, also over programs that this process starts."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    prctl(PR_CAP_AMBIENT, _AMBIENT_CLEAR_ALL)
    for capability in range(_last_capability() + 1):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except PermissionError:  # an ordinary user has none to drop
            break
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    _checked(_LIBC.capset(header, struct.pack("6I", *[0] * 6)))


def _last_capability() -> int:
    try:
        return int(_LAST_CAPABILITY.read_text(encoding="ascii"))
    except OSError:
        return 63


def _checked(result: int, name: str | None = None) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
    return result
