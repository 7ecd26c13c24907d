"""A stage's own control group (cgroup v2), in which the kernel enforces memory and processes."""

import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Final

import structlog

from service.contract.failures import Failure
from worker.processes import linux
from worker.supervision.limits import breaches, delegated_group
from worker.supervision.limits.delegated_group import NoGroupsError
from worker.supervision.limits.stage_limits import StageLimits

log = structlog.get_logger(__name__)

_PREFIX: Final = "finetune-stage"
_INNER: Final = "stage"
_END_SECONDS: Final = 5.0
_NUMBERS: Final = count()


class NoGroup:
    """Where the kernel does not offer one: `ResourceWatch` alone holds the limits."""

    folder: Path | None = None

    def fault(self) -> Failure | None:
        return None

    def kill(self) -> None:
        return None


NO_GROUP: Final = NoGroup()


@lru_cache
def prepare() -> str:
    """Once at the start of a worker, before it starts others: what will hold its stages' limits."""
    try:
        base = delegated_group.settle()
    except NoGroupsError as error:
        return f"the watching supervisor ({error})"
    sweep(base)
    return f"control groups below {base}"


@contextmanager
def stage_group(limits: StageLimits) -> Iterator["StageGroup | NoGroup"]:
    """As long as the context lasts; then everything that is left in it is killed."""
    group = _make(limits)
    try:
        yield group or NO_GROUP
    finally:
        if group is not None:
            group.remove()


def _make(limits: StageLimits) -> "StageGroup | None":
    try:
        base = delegated_group.find()
        sweep(base)
        return StageGroup(base, limits)
    except NoGroupsError:
        return None
    except OSError as error:
        log.warning("limits.no_group", error=str(error))
        return None


class StageGroup:
    """`base`: the group below which it is made.

    The stage is in a group inside of the one that has the limits: in a user namespace that it
    makes, it could mount the groups from its own one on, and write there.
    """

    def __init__(self, base: Path, limits: StageLimits) -> None:
        self._limits = limits
        # Names this supervisor, also when another process has its pid later.
        supervisor = f"{os.getpid()}-{linux.started(os.getpid())}"
        self._folder = base / f"{_PREFIX}-{supervisor}-{next(_NUMBERS)}"
        self.folder = self._folder / _INNER
        """The group that the stage's first process has to join."""
        self.folder.mkdir(parents=True)
        try:
            self._limit()
        except OSError:
            self.remove()
            raise

    def _limit(self) -> None:
        write(self._folder, "memory.max", self._limits.memory_bytes)
        if (self._folder / "memory.swap.max").exists():  # not without swap accounting
            write(self._folder, "memory.swap.max", 0)
        write(self._folder, "memory.oom.group", 1)
        # One more than allowed: a stage that has so many is over its limit, also for the watch.
        write(self._folder, "pids.max", self._limits.processes + 1)
        write(self._folder, "cgroup.max.descendants", 1)

    def fault(self) -> Failure | None:
        """Which of its limits the stage has reached, if one."""
        killed = _table(self._folder / "memory.events").get("oom_kill", 0)
        if killed:
            limit = self._limits.memory_bytes
            return breaches.killed_at_limit(self._peak(limit), limit, killed)
        if _table(self._folder / "pids.events").get("max", 0):
            most = self._limits.processes
            return breaches.too_many_processes(most + 1, most)
        return None

    def kill(self) -> None:
        kill(self._folder)

    def remove(self) -> None:
        remove(self._folder)

    def _peak(self, limit: int) -> int:
        try:
            return int((self._folder / "memory.peak").read_text())
        except FileNotFoundError:  # before Linux 5.19
            return limit


def sweep(base: Path) -> None:
    """Remove the groups of supervisors that were killed, with the processes that are left."""
    for folder in base.glob(f"{_PREFIX}-*"):
        if not _is_used(folder.name):
            log.info("limits.group_swept", group=folder.name)
            remove(folder)


def remove(folder: Path) -> None:
    """Kill everything in the group, and remove it; the next `sweep` does if it does not end."""
    deadline = time.monotonic() + _END_SECONDS
    while True:
        with suppress(FileNotFoundError):
            kill(folder)
        try:
            for group in (folder / _INNER, folder):
                if group.exists():
                    group.rmdir()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                log.warning("limits.group_left", group=folder.name, error=str(error))
                return
        time.sleep(0.005)


def kill(folder: Path) -> None:
    switch = folder / "cgroup.kill"
    if switch.exists():
        switch.write_text("1")
        return
    for pid in (folder / _INNER / "cgroup.procs").read_text().split():  # before Linux 5.14
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


def write(folder: Path, name: str, value: int) -> None:
    (folder / name).write_text(str(value))


def _is_used(name: str) -> bool:
    pid, started = name.removeprefix(f"{_PREFIX}-").split("-")[:2]
    return linux.started(int(pid)) == int(started)


def _table(file: Path) -> Mapping[str, int]:
    words = file.read_text().split()
    return dict(zip(words[::2], map(int, words[1::2]), strict=True))
