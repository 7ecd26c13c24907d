"""Keeps a set of server processes running: started in tiers, restarted with backoff, stopped."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from service.cli.stack.linux import StopEvent
from service.system import inherited_secrets
from service.system.prctl import die_with_parent

POLL_SECONDS = 0.1
FIRST_BACKOFF_SECONDS = 1.0
LONGEST_BACKOFF_SECONDS = 60.0
STEADY_SECONDS = 60.0
"""A part that ran for so long starts again with the first backoff."""

Say = Callable[[str], None]
Ready = Callable[[int], str | None]
"""Checks whether a part, by its process id, is ready; returns what to tell the user then."""


@dataclass(frozen=True)
class Part:
    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    ready: Ready
    log: Path
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Given to it through a pipe (`service.system.inherited_secrets`)."""
    ready_seconds: float = 60.0
    grace_seconds: float = 10.0
    """From SIGTERM to SIGKILL."""


class PartFailedError(Exception):
    """A part ended, or stayed silent, before it was ready for the first time."""


class _Running:
    """One part and its present process."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.backoff = FIRST_BACKOFF_SECONDS
        self.restart_at = 0.0
        self.process = self._spawn()

    def _spawn(self) -> subprocess.Popen[bytes]:
        self.started_at = time.monotonic()
        self.serving = False
        parent = os.getpid()
        with (
            self.part.log.open("ab") as log,
            inherited_secrets.pipe(self.part.secrets) as (variables, descriptors),
        ):
            return subprocess.Popen(
                self.part.argv,
                env={**self.part.env, **variables},
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # A group of its own: a Ctrl-C at the terminal reaches `up` alone, and one signal
                # reaches what the part has started.
                start_new_session=True,
                preexec_fn=lambda: die_with_parent(parent),
            )

    def restart(self) -> None:
        self.restart_at = 0.0
        self.process = self._spawn()

    def schedule_restart(self) -> float:
        """Returns the seconds to wait; they double until the part has run steadily."""
        if time.monotonic() - self.started_at > STEADY_SECONDS:
            self.backoff = FIRST_BACKOFF_SECONDS
        wait = self.backoff
        self.restart_at = time.monotonic() + wait
        self.backoff = min(2 * wait, LONGEST_BACKOFF_SECONDS)
        return wait

    def check_ready(self) -> str | None:
        """A message for the user, once, when the part has become ready."""
        report = None if self.serving else self.part.ready(self.process.pid)
        self.serving = self.serving or report is not None
        return report

    def end_of_log(self) -> str:
        """The log's last line and where the rest is."""
        lines = self.part.log.read_text(errors="replace").strip().splitlines()
        return f"{lines[-1] if lines else '(its log is empty)'}\n  log: {self.part.log}"

    def kill_group(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return


class ProcessManager:
    """Runs parts until `stop` is set. Use from one thread only: a part dies with its thread."""

    def __init__(self, say: Say, stop: StopEvent) -> None:
        self._say = say
        self._stop = stop
        self._tiers: list[list[_Running]] = []

    def start(self, parts: Sequence[Part]) -> bool:
        """Start a tier; True when all of it serves, False when a stop was asked for meanwhile.

        Raises PartFailedError: a restart does not fix what fails at the first start.
        """
        tier = [_Running(part) for part in parts]
        self._tiers.append(tier)
        while not all(running.serving for running in tier):
            if self._stop.wait(POLL_SECONDS):
                return False
            for running in tier:
                self._await_first_service(running)
        return True

    def _await_first_service(self, running: _Running) -> None:
        part, status = running.part, running.process.poll()
        if status is not None:
            raise PartFailedError(f"{part.name} {_ending(status)}: {running.end_of_log()}")
        self._report_ready(running)
        if not running.serving and time.monotonic() - running.started_at > part.ready_seconds:
            raise PartFailedError(
                f"{part.name} did not answer within {part.ready_seconds:g} s: "
                f"{running.end_of_log()}"
            )

    def run(self) -> None:
        """Restart what ends, until a stop is asked for."""
        while not self._stop.wait(POLL_SECONDS):
            for tier in self._tiers:
                for running in tier:
                    self._tend(running)

    def _tend(self, running: _Running) -> None:
        if running.restart_at:
            if time.monotonic() >= running.restart_at:
                running.restart()
            return
        status = running.process.poll()
        if status is None:
            self._report_ready(running)
            return
        running.kill_group()
        wait = running.schedule_restart()
        self._say(
            f"{running.part.name} {_ending(status)}; restart in {wait:g} s: {running.end_of_log()}"
        )

    def _report_ready(self, running: _Running) -> None:
        if (report := running.check_ready()) is not None:
            self._say(f"{running.part.name} {report}")

    def stop(self) -> None:
        """Stop the tiers, the last started first, each within its parts' grace.

        Asked again, it signals again the parts that still run: a worker then ends its stages at
        once.
        """
        for tier in reversed(self._tiers):
            alive = [running for running in tier if running.process.poll() is None]
            for running in alive:
                # To the part itself, not to its group: it knows how to end its children.
                running.process.terminate()
            for running in alive:
                self._await_end(running)
        self._tiers.clear()

    def _await_end(self, running: _Running) -> None:
        deadline = time.monotonic() + running.part.grace_seconds
        signalled_again = False
        while running.process.poll() is None and time.monotonic() < deadline:
            if self._stop.is_urgent and not signalled_again:
                running.process.terminate()
                signalled_again = True
            time.sleep(POLL_SECONDS)
        if running.process.poll() is None:
            self._say(f"{running.part.name} killed after {running.part.grace_seconds:g} s")
        else:
            self._say(f"{running.part.name} stopped")
        running.kill_group()
        running.process.wait()


def _ending(status: int) -> str:
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"ended with status {status}"
