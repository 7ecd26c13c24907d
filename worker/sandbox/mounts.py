"""A file system that holds nothing but a view: the rest is not there. Every path keeps its name."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from worker.sandbox import system_calls as sys_
from worker.sandbox.view import View

_BASE: Final = "/tmp"  # any folder would do: it is hidden for a moment only
_OLD: Final = "/.old"
_SHARED_MEMORY: Final = Path("/dev/shm")
_MOST_FILES: Final = 65_536  # each takes a kilobyte of the kernel's memory
_LINKS: Final = {
    "/dev/fd": "/proc/self/fd",
    "/dev/stdin": "/proc/self/fd/0",
    "/dev/stdout": "/proc/self/fd/1",
    "/dev/stderr": "/proc/self/fd/2",
}
# Files of /proc that root may write without any capability.
_KERNEL_SETTINGS: Final = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus")
_SKIPPED: Final = (errno.ENOENT, errno.EACCES, errno.ENOTDIR, errno.ELOOP)


def enter(view: View) -> None:
    """Replace the root folder. The process namespace must be new, too: it is what /proc shows."""
    folder = Path.cwd()
    sys_.unshare(sys_.NEW_MOUNTS)
    shared_memory = _size(_SHARED_MEMORY, view.shared_memory_bytes)
    sys_.mount("none", "/", None, sys_.MS_REC | sys_.MS_PRIVATE)
    sys_.mount("tmpfs", _BASE, "tmpfs", sys_.MS_NOSUID | sys_.MS_NODEV, "mode=755,size=16m")
    Path(_BASE + _OLD).mkdir()
    sys_.pivot_root(_BASE, _BASE + _OLD)
    os.chdir("/")
    for path, is_writable in _in_order(view):
        if path == _SHARED_MEMORY:
            continue  # other processes' segments are in the host's
        _bind(view.trusted(path), path, read_only=not is_writable)
    _mount_proc()
    for name, target in _LINKS.items():
        _make_parent(name)
        Path(name).symlink_to(target)
    if shared_memory:
        _SHARED_MEMORY.mkdir(parents=True)
        flags = sys_.MS_NOSUID | sys_.MS_NODEV
        sys_.mount("tmpfs", str(_SHARED_MEMORY), "tmpfs", flags, f"mode=1777,{shared_memory}")
    sys_.unmount(_OLD)
    Path(_OLD).rmdir()
    flags = sys_.MS_NOSUID | sys_.MS_NODEV
    sys_.mount("none", "/", None, sys_.MS_REMOUNT | sys_.MS_BIND | sys_.MS_RDONLY | flags)
    os.chdir(folder)


def _in_order(view: View) -> Iterator[tuple[Path, bool]]:
    """Outer folders first: a writable folder may be inside of a readable one, and the reverse."""
    order = dict.fromkeys(view.read, False) | dict.fromkeys((*view.write, *view.devices), True)
    yield from sorted(order.items())


def _size(folder: Path, most: int | None) -> str:
    """As mount options; empty if there is no such folder."""
    if not folder.is_dir():
        return ""
    found = os.statvfs(folder)
    size = found.f_blocks * found.f_frsize
    return f"size={size if most is None else min(size, most)},nr_inodes={_MOST_FILES}"


def _bind(trusted: Path, path: Path, *, read_only: bool) -> None:
    """Show `path` where it is; no link is followed behind `trusted`."""
    real = _real(trusted)
    if real is None:
        return
    target = str(real / path.relative_to(trusted))
    try:
        with _source(real, path.relative_to(trusted)) as source:
            if not os.path.lexists(target):
                _make_parent(target)
                if Path(source).is_dir():
                    Path(target).mkdir()
                else:
                    os.close(os.open(target, os.O_CREAT | os.O_CLOEXEC, 0o600))
            sys_.mount(source, target, None, sys_.MS_BIND | sys_.MS_REC)
    except OSError as error:
        if error.errno in _SKIPPED:
            return
        raise
    sys_.set_mount_attributes(target, sys_.NO_SUID | (sys_.READ_ONLY if read_only else 0))


@contextmanager
def _source(real: Path, rest: Path) -> Iterator[str]:
    """A name for `rest` in the folder `real` of the old root that cannot become a link any more."""
    folder = os.open(_OLD + str(real), os.O_PATH | os.O_CLOEXEC)
    try:
        found = sys_.open_below(folder, str(rest)) if rest.parts else os.dup(folder)
    finally:
        os.close(folder)
    try:
        yield f"{_OLD}/proc/self/fd/{found}"
    finally:
        os.close(found)


def _real(path: Path) -> Path | None:
    """Where `path` leads to in the old root; the links on the way are made in the new one."""
    done = Path("/")
    todo = list(path.parts[1:])
    for _ in range(200):  # a loop of links ends here
        if not todo:
            return done
        here = done / todo.pop(0)
        if here.name == "..":
            done = done.parent
            continue
        old = Path(_OLD + str(here))
        if not old.is_symlink():
            done = here
            continue
        target = str(old.readlink())
        if not os.path.lexists(here):
            _make_parent(str(here))
            here.symlink_to(target)
        todo = [*Path(target).parts, *todo]
        if target.startswith("/"):
            done, todo = Path("/"), todo[1:]
    return None


def _make_parent(path: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)


def _mount_proc() -> None:
    Path("/proc").mkdir(exist_ok=True)
    flags = sys_.MS_NOSUID | sys_.MS_NODEV | sys_.MS_NOEXEC
    sys_.mount("proc", "/proc", "proc", flags)
    for name in _KERNEL_SETTINGS:
        if Path(name).exists():
            sys_.mount(name, name, None, sys_.MS_BIND | sys_.MS_REC)
            sys_.set_mount_attributes(name, sys_.READ_ONLY)
