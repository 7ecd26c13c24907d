"""A process and all that it has started, read from /proc. Linux only."""

import os
import re
import signal
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from worker.processes import linux
from worker.processes.child import STARTED

_PROC: Final = Path("/proc")
_KIB: Final = 1024
_BLOCK: Final = 512
_REAP_SECONDS: Final = 1.0
_NO_NEW_PRIVILEGES: Final = b"NoNewPrivs:\t1"
_IN_MEMORY: Final = ("/memfd:", "/dev/shm/")
# Fields of /proc/<pid>/stat (proc(5)), counted from the third, which follows the name.
_STATE, _PARENT, _THREADS, _STARTED = 3 - 3, 4 - 3, 20 - 3, 22 - 3
# Not `Pss_File`: the kernel drops cached pages of files when memory is short.
_PSS: Final = re.compile(rb"^(?:Pss_Anon|Pss_Shmem|SwapPss): +(\d+) kB$", re.MULTILINE)
_SHARED: Final = re.compile(rb"^RssShmem:\t *(\d+) kB$", re.MULTILINE)
_OWN: Final = re.compile(rb"^(?:RssAnon|RssShmem|VmSwap):\t *(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True)
class Process:
    pid: int
    name: str
    parent: int
    threads: int
    started: int
    """Clock ticks since boot: with the pid it names one process, whoever has the pid next."""


class ProcessTree:
    """`root` and its descendants, also those whose parent has ended."""

    def __init__(self, root: int, *, adopts: bool = True) -> None:
        """`adopts`: whether what this process has adopted from a stage belongs to the tree."""
        self._root = root
        self._adopts = adopts
        self._members: dict[int, Process] = {}
        self._adopted: set[int] = set()
        """Children of this process that it has not started, and so nothing else reaps."""

    @property
    def threads(self) -> int:
        """Of all processes, when they were last looked for."""
        return sum(member.threads for member in self._members.values())

    def scan(self) -> list[Process]:
        """Look for all of them; a few milliseconds on a machine with hundreds of processes."""
        alive = {process.pid: process for process in _processes(_pids())}
        children = defaultdict(list)
        for process in alive.values():
            children[process.parent].append(process)
        found: dict[int, Process] = {}
        waiting = [
            alive[pid] for pid in {self._root, *self._members} if self._is_same(alive.get(pid))
        ]
        strays = _strays(children[os.getpid()]) if self._adopts else []
        self._adopted |= {child.pid for child in strays}
        waiting += strays
        while waiting:
            process = waiting.pop()
            if process.pid not in found:
                found[process.pid] = process
                waiting += children[process.pid]
        self._members = found
        return list(found.values())

    def resident_bytes(self) -> int:
        """The most that those seen by `scan` can have: shared pages count for each of them."""
        return sum(linux.resident_bytes(pid) for pid in self._members)

    def used_bytes(self) -> dict[Process, int]:
        """Of each, with its part of the shared pages."""
        return {member: _used_bytes(member.pid) for member in self._members.values()}

    def unmapped_bytes(self) -> int:
        """Of files in memory that processes hold open: written, not mapped, they are in no
        process's memory."""
        files: dict[tuple[int, int], int] = {}
        mapped = 0
        for pid in self._members:
            mapped += _sum_kib(_SHARED, _status(pid))
            files |= dict(_memory_files(pid))
        return max(0, sum(files.values()) - mapped)

    def kill(self) -> bool:
        """Kill all of them; whether there were any.

        First they are stopped, until no new one appears: those that are killed while others run
        only make room for more.
        """
        seen, members = set(_pids()), {process.pid for process in self.scan()}
        new = set(members)
        while new:
            _send(signal.SIGSTOP, new)
            unseen = set(_pids()) - seen
            seen |= unseen
            new = set()
            for process in _processes(sorted(unseen)):
                if process.parent in members:
                    members.add(process.pid)
                    new.add(process.pid)
        _send(signal.SIGKILL, members)
        return bool(members)

    def reap_adopted(self) -> None:
        """After `kill`; for at most a second."""
        deadline = time.monotonic() + _REAP_SECONDS
        while self._adopted and time.monotonic() < deadline:
            self._adopted -= {pid for pid in self._adopted if _has_ended(pid)}
            time.sleep(0.005 if self._adopted else 0)

    def _is_same(self, process: Process | None) -> bool:
        known = None if process is None else self._members.get(process.pid)
        return process is not None and (known is None or known.started == process.started)


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in os.scandir(_PROC) if entry.name.isdigit())


def _processes(pids: Iterable[int]) -> Iterator[Process]:
    """Those of them that have not ended."""
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123, half as long
                before, _, after = file.read().rpartition(b")")
        except OSError:  # it has just ended
            continue
        fields = after.split()
        if fields[_STATE] not in (b"Z", b"X"):
            yield Process(
                pid,
                before.partition(b"(")[2].decode(errors="replace"),
                int(fields[_PARENT]),
                int(fields[_THREADS]),
                int(fields[_STARTED]),
            )


def _send(number: signal.Signals, pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _strays(children: Iterable[Process]) -> list[Process]:
    """Of this process's children those that it has adopted from a stage.

    A confined process cannot remove its mark, `no_new_privs`; this process's other children do not
    have it. Where this process has it, its children cannot be distinguished.
    """
    if _NO_NEW_PRIVILEGES in _status(os.getpid()):
        return []
    return [
        child
        for child in children
        if child.pid not in STARTED and _NO_NEW_PRIVILEGES in _status(child.pid)
    ]


def _has_ended(child: int) -> bool:
    """Reaps it."""
    try:
        return os.waitpid(child, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True


def _status(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/status").read_bytes()
    return b""


def _used_bytes(pid: int) -> int:
    """Without files that it maps. Exact where the kernel lets us read it; otherwise pages that
    processes share count in each."""
    with suppress(OSError):
        text = Path(f"/proc/{pid}/smaps_rollup").read_bytes()
        if b"Pss_Anon" in text:  # from Linux 5.9 on
            return _sum_kib(_PSS, text)
    return _sum_kib(_OWN, _status(pid))


def _sum_kib(pattern: re.Pattern[bytes], text: bytes) -> int:
    return sum(map(int, pattern.findall(text))) * _KIB


def _memory_files(pid: int) -> Iterator[tuple[tuple[int, int], int]]:
    """(device and inode, size) of the open files that live in memory."""
    with suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if str(Path(entry.path).readlink()).startswith(_IN_MEMORY):
                    status = entry.stat()
                    yield (status.st_dev, status.st_ino), status.st_blocks * _BLOCK
