"""The control group (cgroup v2) below which this worker may make one for each of its stages."""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

CONTROLLERS: Final = frozenset({"memory", "pids"})
_LEAF: Final = "worker"
_MARKS: Final = ("trusted.delegate", "user.delegate")
_MOUNT: Final = re.compile(r"^\d+ \d+ \S+ (\S+) (\S+) .* - cgroup2 ", re.MULTILINE)
_OWN: Final = re.compile(r"^0::(/.*)$", re.MULTILINE)
_NOT_OURS: Final = (
    "the worker's control group was not delegated to it: with systemd, set `Delegate=memory pids` "
    "in its unit"
)


class NoGroupsError(Exception):
    """Stages cannot have control groups of their own here; the message explains why."""


@dataclass(frozen=True)
class System:
    """Where the kernel and systemd show what is needed; other folders in tests."""

    proc: Path = Path("/proc")
    systemd: Path = Path("/run/systemd/system")


_SYSTEM: Final = System()


def find(system: System = _SYSTEM) -> Path:
    """The group above this process's own one, after `settle` in this process or an ancestor."""
    base = _above(_own(system), system)
    if not _words(base / "cgroup.subtree_control") >= CONTROLLERS:
        raise NoGroupsError("no worker has made control groups possible here")
    return base


def settle(system: System = _SYSTEM) -> Path:
    """As `find`, and prepares the group. To be called before this process starts others.

    A group whose children have limits must not have processes itself. If this process is alone in
    its own group, it moves into a new one below that; if it was started in such a leaf (systemd's
    `DelegateSubgroup=`), it stays there.
    """
    own = _own(system)
    try:
        base = _above(own, system)
    except NoGroupsError:
        _require_delegated(own, system, allowed=frozenset(_and_descendants(psutil.Process())))
        _move_down(own)
        return own
    _enable(base)
    return base


def _own(system: System) -> Path:
    """The folder of this process's group."""
    try:
        path = _OWN.search((system.proc / "self/cgroup").read_text())
        mounts = _MOUNT.findall((system.proc / "self/mountinfo").read_text())
    except OSError as error:
        raise NoGroupsError(f"control groups cannot be read: {error}") from None
    for root, folder in mounts:
        if path is not None and ".." not in path[1] and Path(path[1]).is_relative_to(root):
            return Path(folder) / Path(path[1]).relative_to(root)
    raise NoGroupsError("no cgroup v2 that this process is in is mounted")


def _above(own: Path, system: System) -> Path:
    """The parent of a leaf that this module or systemd has made."""
    if own.name != _LEAF and not _is_marked(own.parent):
        raise NoGroupsError("the worker has not left its control group to its stages")
    _require_delegated(own.parent, system)
    return own.parent


def _require_delegated(group: Path, system: System, allowed: frozenset[int] = frozenset()) -> None:
    """Raises NoGroupsError unless the group is this worker's and has only `allowed` processes."""
    try:
        if (group / "cgroup.type").read_text().strip() != "domain":
            raise NoGroupsError("the worker's control group is threaded")
        missing = CONTROLLERS - _words(group / "cgroup.controllers")
        others = set(map(int, _words(group / "cgroup.procs"))) - allowed
    except FileNotFoundError:
        raise NoGroupsError("the worker is in no control group of its own") from None
    except (OSError, ValueError) as error:
        raise NoGroupsError(f"control groups cannot be read: {error}") from None
    if missing:
        raise NoGroupsError(f"the worker's control group has no {' and '.join(sorted(missing))}")
    if others:
        raise NoGroupsError("the worker's control group has processes that are not the worker's")
    files = (group, group / "cgroup.procs", group / "cgroup.subtree_control")
    if not all(os.access(file, os.W_OK) for file in files):
        raise NoGroupsError("the worker may not write to its control group")
    if not _is_delegated(group, system):
        raise NoGroupsError(_NOT_OURS)


def _is_delegated(group: Path, system: System) -> bool:
    """Whether nothing else manages the groups below: systemd has delegated them, systemd is absent,
    or the group is all that a container has."""
    if _is_marked(group):
        return True
    return not system.systemd.is_dir() or not (group.parent / "cgroup.procs").exists()


def _is_marked(group: Path) -> bool:
    """Whether systemd has delegated it."""
    for name in _MARKS:
        with suppress(OSError):
            if os.getxattr(group, name) == b"1":
                return True
    return False


def _move_down(own: Path) -> None:
    leaf = own / _LEAF
    try:
        leaf.mkdir(exist_ok=True)
        for pid in _words(own / "cgroup.procs"):
            (leaf / "cgroup.procs").write_text(pid)
        _enable(own)
    except (OSError, NoGroupsError) as error:
        with suppress(OSError):
            for pid in _words(leaf / "cgroup.procs"):
                (own / "cgroup.procs").write_text(pid)
            leaf.rmdir()
        raise NoGroupsError(str(error)) from None


def _enable(base: Path) -> None:
    try:
        (base / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in CONTROLLERS))
    except OSError as error:
        raise NoGroupsError(f"the kernel refuses limits below {base}: {error.strerror}") from None


def _and_descendants(process: psutil.Process) -> Iterator[int]:
    yield process.pid
    for child in process.children(recursive=True):
        yield child.pid


def _words(file: Path) -> frozenset[str]:
    return frozenset(file.read_text().split())
