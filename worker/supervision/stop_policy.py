"""Looks whether a stage must stop, and sees to it that it does: softly, politely, or at once."""

import time
from collections.abc import Callable, Iterator
from enum import Enum, auto
from typing import Final, NamedTuple

import structlog

from service.contract.events import StageEvent
from service.contract.failures import Failure, FailureCode
from service.settings import Settings
from service.store.claims import Claim
from worker.lifecycle.shutdown import Shutdown
from worker.processes.child import Child
from worker.supervision.event_recorder import EventRecorder
from worker.supervision.hang_detector import HangDetector
from worker.supervision.heartbeat import Heartbeat

log = structlog.get_logger(__name__)


class Stop(Enum):
    """Why a stage must not go on."""

    STALE = auto()
    UNREACHABLE = auto()
    CANCELLED = auto()
    TIMEOUT = auto()
    HUNG = auto()
    FAULT = auto()
    PAUSE = auto()
    SHUTDOWN = auto()


SOFT: Final = frozenset({Stop.PAUSE, Stop.SHUTDOWN})
"""The job goes on later: the stage may first come to where it loses nothing."""
# Another worker may hold the job now or soon: there is no time to be polite.
_AT_ONCE: Final = frozenset({Stop.STALE, Stop.UNREACHABLE})


class StopPolicy:
    """Of one attempt. A soft reason gives way to any other; else the first one stays."""

    def __init__(
        self,
        claim: Claim,
        settings: Settings,
        heartbeat: Heartbeat,
        recorder: EventRecorder,
        shutdown: Shutdown,
        cpu_seconds: Callable[[], float],
    ) -> None:
        self._claim = claim
        self._settings = settings
        self._heartbeat = heartbeat
        self._recorder = recorder
        self._shutdown = shutdown
        now = time.monotonic()
        self._limits = [
            _Limit(option, seconds, now + seconds - used)
            for option, seconds, used in _limits(claim)
            if seconds is not None
        ]
        self._hang_detector = HangDetector(settings.hung_seconds, cpu_seconds, now)
        self._terminate_at: float | None = None
        self._kill_at: float | None = None
        self.reason: Stop | None = None
        self.failure: Failure | None = None
        """What the reason means for the job, where that is not what the stage itself says."""

    def record(self, event: StageEvent) -> None:
        self._hang_detector.record(event, time.monotonic())

    def apply(self, child: Child) -> None:
        """Once in a while, as long as the stage lives."""
        now = time.monotonic()
        reason = self._reason(now)
        if reason in SOFT and self.reason is None:
            self._stop_for(reason, now + self._settings.drain_grace_seconds)
            child.stop_softly()
        elif reason not in SOFT and (self.reason is None or self.reason in SOFT):
            self._stop_for(reason, now)
        if self._terminate_at is not None and self._is_over(self._terminate_at, now):
            child.terminate()
            self._terminate_at = None
            self._kill_at = self._kill_at or now + self._settings.stop_grace_seconds
        # A polite stop turns into a kill when the claim is lost meanwhile, too.
        lost = self.reason in _AT_ONCE or self._lost() is not None
        if lost or (self._kill_at is not None and now >= self._kill_at):
            child.kill()

    def _stop_for(self, reason: Stop | None, terminate_at: float) -> None:
        if reason is not None:
            self.reason, self._terminate_at = reason, terminate_at
            log.info("stage.stopping", reason=reason.name)

    def _is_over(self, grace_ends: float, now: float) -> bool:
        return now >= grace_ends or self._shutdown.is_urgent()

    def _lost(self) -> Stop | None:
        if self._heartbeat.is_stale or self._recorder.is_stale:
            return Stop.STALE
        if self._heartbeat.seconds_since_beat > self._settings.kill_seconds:
            return Stop.UNREACHABLE
        return None

    def _reason(self, now: float) -> Stop | None:
        lost = self._lost()
        if lost is not None:
            return lost
        if self._heartbeat.is_cancelling:
            return Stop.CANCELLED
        if self._recorder.fault is not None:
            return Stop.FAULT
        if self._is_overdue(now):
            return Stop.TIMEOUT
        if self._is_hung(now):
            return Stop.HUNG
        if self._heartbeat.is_pausing:
            return Stop.PAUSE
        return Stop.SHUTDOWN if self._shutdown.is_requested() else None

    def _is_overdue(self, now: float) -> bool:
        passed = next((limit for limit in self._limits if now >= limit.deadline), None)
        if passed is None:
            return False
        message = (
            f"`{passed.option}` is {passed.seconds} s, which have passed: "
            f"stopped in {self._claim.stage}."
        )
        self.failure = Failure.of(FailureCode.TIMEOUT, message, option=passed.option)
        return True

    def _is_hung(self, now: float) -> bool:
        outcome = self._hang_detector.hang_message(now)
        if outcome is None:
            return False
        self.failure = Failure.of(FailureCode.HUNG, outcome)
        return True


class _Limit(NamedTuple):
    option: str
    seconds: int
    deadline: float


def _limits(claim: Claim) -> Iterator[tuple[str, int | None, float]]:
    """(option, seconds allowed, seconds that earlier attempts have used)."""
    stage, spec = claim.stage, claim.spec
    yield "timeout_seconds", spec.timeout_seconds, claim.used_seconds
    allowed = spec.stage_timeout_seconds.of(stage)
    yield f"stage_timeout_seconds.{stage}", allowed, claim.stage_used_seconds
