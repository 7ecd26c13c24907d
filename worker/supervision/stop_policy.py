"""Decides whether a stage must stop, and stops it: softly, with SIGTERM, or with SIGKILL."""

import time
from collections.abc import Callable, Iterator
from enum import Enum, auto
from typing import Final, NamedTuple

import structlog

from service.contract.failures import Failure, FailureCode
from service.contract.stage.events import StageEvent
from service.contract.states import Stage
from service.settings import Settings
from service.store.jobs.claims import Claim
from worker.lifecycle.shutdown import Shutdown
from worker.processes.child import Child
from worker.supervision.event_recorder import EventRecorder
from worker.supervision.hang_detector import HangDetector
from worker.supervision.heartbeat import Heartbeat

log = structlog.get_logger(__name__)


class Stop(Enum):
    """Why a stage must stop."""

    STALE = auto()
    UNREACHABLE = auto()
    CANCELLED = auto()
    TIMEOUT = auto()
    HUNG = auto()
    FAULT = auto()
    PAUSE = auto()
    SHUTDOWN = auto()


_STAGE_SECONDS: Final = {Stage.PREPARE: 6 * 3600.0, Stage.PUBLISH: 6 * 3600.0}
"""Running time of a stage over all its attempts, in jobs that set none."""
SOFT: Final = frozenset({Stop.PAUSE, Stop.SHUTDOWN})
"""The job resumes later, so the stage may first reach a point where it loses nothing."""
# Another worker may hold the job now or soon, so the stage is killed at once.
_AT_ONCE: Final = frozenset({Stop.STALE, Stop.UNREACHABLE})


class StopPolicy:
    """For one attempt. The first reason stays, but any other reason replaces a soft one."""

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
            for option, seconds, used in _limits(claim, settings)
            if seconds is not None
        ]
        self._hang_detector = HangDetector(settings.hung_seconds, cpu_seconds, now)
        self._terminate_at: float | None = None
        self._kill_at: float | None = None
        self.reason: Stop | None = None
        self.failure: Failure | None = None
        """The failure that the reason causes, if it is not the one the stage itself reports."""

    def record(self, event: StageEvent) -> None:
        self._hang_detector.record(event, time.monotonic())

    def apply(self, child: Child) -> None:
        """Stop the stage if there is a reason to. Called regularly while the stage runs."""
        now = time.monotonic()
        reason = self._reason(now)
        if reason in SOFT and self.reason is None:
            self._stop_for(reason, now + self._settings.drain_grace_seconds)
            child.stop_softly()
        elif reason not in SOFT and (self.reason is None or self.reason in SOFT):
            self._stop_for(reason, now)
        if self._terminate_at is not None and (
            now >= self._terminate_at or self._shutdown.is_urgent()
        ):
            child.terminate()
            self._terminate_at = None
            self._kill_at = self._kill_at or now + self._settings.stop_grace_seconds
        # If the claim is lost in the meantime, SIGTERM is followed by SIGKILL at once.
        lost = self.reason in _AT_ONCE or self._lost() is not None
        if lost or (self._kill_at is not None and now >= self._kill_at):
            child.kill()

    def _stop_for(self, reason: Stop | None, terminate_at: float) -> None:
        if reason is not None:
            self.reason, self._terminate_at = reason, terminate_at
            log.info("stage.stopping", reason=reason.name)

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
            f"The job was stopped in {self._claim.stage}: "
            f"`{passed.option}` allows {passed.seconds:g} s."
        )
        self.failure = Failure.from_code(FailureCode.TIMEOUT, message, option=passed.option)
        return True

    def _is_hung(self, now: float) -> bool:
        outcome = self._hang_detector.hang_message(now)
        if outcome is None:
            return False
        self.failure = Failure.from_code(FailureCode.HUNG, outcome)
        return True


class _Limit(NamedTuple):
    option: str
    seconds: float
    deadline: float


def _limits(claim: Claim, settings: Settings) -> Iterator[tuple[str, float | None, float]]:
    """(option, seconds allowed, seconds that earlier attempts have used): the job's own limits, or
    else the operator's."""
    stage, spec = claim.stage, claim.spec
    if spec.timeout_seconds is not None:
        yield "timeout_seconds", spec.timeout_seconds, claim.used_seconds
    else:
        default = settings.default_timeout_seconds
        yield "FINETUNE_DEFAULT_TIMEOUT_SECONDS", default, claim.used_seconds
    yield "FINETUNE_LONGEST_TIMEOUT_SECONDS", settings.longest_timeout_seconds, claim.used_seconds
    own = spec.stage_timeout_seconds.for_stage(stage)
    seconds = _STAGE_SECONDS.get(stage) if own is None else own
    yield f"stage_timeout_seconds.{stage}", seconds, claim.stage_used_seconds
