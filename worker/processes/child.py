"""The process of a stage: in its own session, read without blocking, ended with all descendants."""

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

import structlog
from pydantic import ValidationError

from service.contract.stage.events import STAGE_EVENT, StageEvent
from worker.processes import spawn
from worker.processes.spawn import Launch, Start
from worker.sandbox.view import View

log = structlog.get_logger(__name__)

_REAP_SECONDS: Final = 1.0
_CHUNK: Final = 1 << 16
_NUL, _REPLACEMENT = rb"\u0000", rb"\ufffd"  # Postgres stores no text with U+0000
_LONGEST_LINE: Final = 2 * 1024**2  # twice what a stage of ours sends
STARTED: Final[set[int]] = set()
"""The processes that this one has started and not reaped."""
_VMSTAT: Final = Path("/proc/vmstat")


class Child:
    """Must be started on the main thread: PR_SET_PDEATHSIG is bound to the thread that forks.

    When the context ends, its whole process group has ended.
    """

    def __init__(
        self,
        command: list[str],
        environment: dict[str, str],
        folder: Path,
        log_file: Path,
        *,
        start: Start = spawn.new_interpreter,
        stdin: int = subprocess.DEVNULL,
        locks: tuple[int, ...] = (),
        secrets: Mapping[str, str] | None = None,
        limits: Mapping[int, int] | None = None,
        view: View | None = None,
        group: Path | None = None,
        nice: int = 0,
    ) -> None:
        self._events, writer = os.pipe()
        os.set_blocking(self._events, False)
        self._rest = b""
        self.at_end = False
        """Whether every process has closed its end of the pipe: no more events can arrive."""
        self._oom_kills = _oom_kills()
        try:
            with log_file.open("ab") as output:
                wanted = Launch(
                    command,
                    environment,
                    folder,
                    output.fileno(),
                    writer,
                    stdin,
                    locks,
                    secrets or {},
                    limits or {},
                    view,
                    group,
                    nice,
                )
                self._process = start(wanted)
        except BaseException:
            os.close(self._events)
            raise
        finally:
            os.close(writer)
        self._groups = {self.pid}
        STARTED.add(self.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.reap()
        os.close(self._events)

    def read(self, seconds: float) -> list[StageEvent]:
        """Events that have arrived; waits for the first one at most `seconds`."""
        return _parsed(self.read_lines(seconds))

    def read_lines(self, seconds: float) -> list[bytes]:
        """As `read`, for a process that reports something else."""
        if self.at_end:
            return []
        ready, _, _ = select.select([self._events], [], [], seconds)
        return self._lines(self._drain()) if ready else []

    def has_exited(self) -> bool:
        """Whether the stage's process has ended; its pid and group stay reserved until `reap`."""
        if self._process.returncode is not None:
            return True
        self._note_groups()
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self._process.pid, options) is not None

    def stop_softly(self) -> None:
        """Tell the whole group to stop at a point where it loses nothing."""
        self._signal(signal.SIGUSR1)

    def terminate(self) -> None:
        """Tell the whole group to stop at once."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def reap(self) -> int:
        """Kill what is left of the group; the return code as subprocess reports it."""
        self.kill()
        status = self._process.wait()
        STARTED.discard(self.pid)
        self._reap_orphans()
        return status

    def _note_groups(self) -> None:
        """Remember the groups led by the stage's children, as ranks do."""
        with suppress(OSError):  # not Linux, or one has just ended
            children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
            self._groups |= {os.getpgid(int(child)) for child in children.split()}

    def _reap_orphans(self) -> None:
        """Reap members of the groups that this process has adopted; for at most a second."""
        deadline = time.monotonic() + _REAP_SECONDS
        for group in self._groups:
            while _reap(group) and time.monotonic() < deadline:
                time.sleep(0.005)

    def oom_killed(self) -> bool:
        """Whether the kernel has killed a process of this host since the start for lack of memory.

        Distinguishes an out-of-memory kill from another SIGKILL.
        """
        return _oom_kills() > self._oom_kills

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def _drain(self) -> bytes:
        chunks = []
        while True:
            try:
                chunk = os.read(self._events, _CHUNK)
            except BlockingIOError:
                break
            if not chunk:
                self.at_end = True
                break
            chunks.append(chunk)
            if len(chunks) * _CHUNK >= _LONGEST_LINE:
                break
        return b"".join(chunks)

    def _lines(self, data: bytes) -> list[bytes]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            log.error("stage_event.too_long", bytes=len(self._rest))
            self._rest = b""
        return [line.replace(_NUL, _REPLACEMENT) for line in lines]


def _parsed(lines: list[bytes]) -> list[StageEvent]:
    events = []
    for line in lines:
        try:
            events.append(STAGE_EVENT.validate_json(line))
        except ValidationError as error:
            log.error("stage_event.invalid", error=str(error)[:500])
    return events


def _reap(group: int) -> bool:
    """Reap the ended members of `group`; whether it has members that still run."""
    with suppress(ChildProcessError):
        while os.waitpid(-group, os.WNOHANG)[0]:
            pass
        return True
    return False


def _oom_kills() -> int:
    """The kernel's count since boot; 0 on systems other than Linux."""
    try:
        counters = _VMSTAT.read_text()
    except OSError:
        return 0
    lines = (line.split() for line in counters.splitlines())
    return next((int(value) for name, value in lines if name == "oom_kill"), 0)
