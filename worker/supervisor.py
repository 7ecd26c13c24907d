"""Starts a stage, hears its events, beats, and passes on the user's wish: one attempt at a time.

Runs in the process of the Celery task and never imports torch.
"""

import time
from collections.abc import Callable
from enum import Enum, auto
from pathlib import Path

import structlog
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from service.contract.events import Failed, Finished, StageEvent
from service.contract.failures import Failure, FailureCode, StageError
from service.contract.stages import StageRequest
from service.contract.states import JobState, Stage
from service.settings import Settings
from service.store import endings
from service.store.claims import Claim
from service.store.database import Database
from service.store.endings import Ending
from worker import checkpoints, failures, stage_request
from worker.child import Child
from worker.heart import Heart
from worker.recorder import Recorder, is_outage
from worker.system_metrics import SystemSampler
from worker.trackers import Tracker
from worker.tracking import Shipping

log = structlog.get_logger(__name__)

LOOK_SECONDS = 0.25
# Events and ends wait so long for a database that is away, before the job is left to its lease.
PATIENCE_SECONDS = 3600.0
_TAIL_SECONDS = 1.0

Command = Callable[[Stage, Path], list[str]]


class Stop(Enum):
    """Why a stage must not go on."""

    STALE = auto()
    BLIND = auto()
    CANCELLED = auto()
    TIMEOUT = auto()
    SHUTDOWN = auto()
    FAULT = auto()


# Another worker may hold the job now or soon: there is no time to be polite.
_AT_ONCE = frozenset({Stop.STALE, Stop.BLIND})


class Supervisor:
    """`stopping` says that this worker is shutting down; `command` is what starts a stage."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        tracker: Tracker,
        *,
        command: Command = stage_request.stage_command,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._database = database
        self._settings = settings
        self._tracker = tracker
        self._command = command
        self._stopping = stopping
        self._policy = endings.Policy(settings.crash_limit, settings.retry_backoff_seconds)

    def supervise(self, claim: Claim) -> JobState | None:
        """Run the claimed stage to its end and write it; the job's state, None when it was lost."""
        workspace = self._settings.workspace(claim.job_id)
        with Heart(self._database, self._settings, claim) as heart:
            ending = self._attempt(claim, workspace, heart)
            if ending is None:
                log.warning("the claim was lost; nothing more is written", epoch=claim.epoch)
                return None
            return self._end(claim, ending, self._patience(heart))

    # ---- the attempt --------------------------------------------------------------------------

    def _attempt(self, claim: Claim, workspace: Path, heart: Heart) -> Ending | None:
        try:
            self._remove_leftovers(claim, workspace)
            request = stage_request.build(self._database, self._settings, self._tracker, claim)
            request_file = request.attempt_dir / "request.json"
            request_file.write_text(request.model_dump_json(indent=1))
        except StageError as error:
            return Ending.failed(error.failure)
        except SQLAlchemyError as error:
            log.warning("the stage cannot be started", error=str(error.__cause__ or error))
            return Ending.released()
        except (OSError, ValueError) as error:
            log.exception("the stage cannot be started")
            return Ending.failed(failures.from_exception(error))
        shipping = Shipping(self._database, self._tracker, claim.job_id, workspace)
        with Recorder(self._database, claim, workspace) as recorder, shipping:
            return self._run(claim, request, heart, recorder)

    def _remove_leftovers(self, claim: Claim, workspace: Path) -> None:
        for folder in stage_request.leftovers(self._database, claim, workspace):
            checkpoints.remove(folder)

    def _run(
        self, claim: Claim, request: StageRequest, heart: Heart, recorder: Recorder
    ) -> Ending | None:
        started = time.monotonic()
        watch = _Watch(claim, self._settings, heart, recorder, self._stopping, started)
        command = self._command(claim.stage, request.attempt_dir / "request.json")
        environment = stage_request.stage_environment(self._settings, claim.stage)
        log_file = request.workspace / "job.log"
        with Child(command, environment, request.attempt_dir, log_file) as child:
            log.info("stage started", stage=claim.stage, epoch=claim.epoch, pid=child.pid)
            with self._sampler(child, claim, recorder):
                said = self._listen(child, watch, recorder)
            status = child.reap()
            out_of_memory = child.oom_killer_struck()
        log.info("stage ended", stage=claim.stage, status=status, reason=watch.reason)
        if not recorder.drain(self._patience(heart)) or heart.is_stale:
            return self._unrecorded(recorder)
        if said is None:
            exit_failure = failures.from_exit(status, oom_killer_struck=out_of_memory)
            said = Failed(failure=exit_failure)
        return _ending(watch.reason, said, claim)

    def _sampler(self, child: Child, claim: Claim, recorder: Recorder) -> SystemSampler:
        return SystemSampler(
            child.pid,
            recorder.add,
            claim.created_at,
            self._settings.system_metrics_seconds,
            disk=self._settings.home,
        )

    def _listen(
        self, child: Child, watch: "_Watch", recorder: Recorder
    ) -> Finished | Failed | None:
        """Pass events on until the stage has ended, which is hastened when it must stop."""
        said: Finished | Failed | None = None
        while not child.has_exited():
            said = _pass_on(child.read(LOOK_SECONDS), recorder) or said
            if child.at_end:
                time.sleep(0.02)  # it has closed its pipe and is about to exit
            watch.look(child)
        child.kill()  # what it started may still hold the pipe
        tail = time.monotonic() + _TAIL_SECONDS
        while not child.at_end and time.monotonic() < tail:
            said = _pass_on(child.read(LOOK_SECONDS), recorder) or said
        return said

    def _unrecorded(self, recorder: Recorder) -> Ending | None:
        if recorder.fault is None:
            return None
        message = f"What the stage said could not be recorded ({recorder.fault})."
        return Ending.failed(Failure.of(FailureCode.INTERNAL, message))

    # ---- its end ------------------------------------------------------------------------------

    def _patience(self, heart: Heart) -> Callable[[], bool]:
        """Whether to leave the job to its lease: at once when this worker shuts down."""
        deadline = time.monotonic() + PATIENCE_SECONDS

        def is_over() -> bool:
            blind = heart.silent_seconds > self._settings.kill_seconds
            return time.monotonic() > deadline or (blind and self._stopping())

        return is_over

    def _end(self, claim: Claim, ending: Ending, give_up: Callable[[], bool]) -> JobState | None:
        """Write the end; during an outage again and again, and never twice."""
        while True:
            try:
                with self._database.write() as session:
                    state = endings.settled(session, claim.job_id, claim.epoch)
                    if state is None:
                        state = endings.end(
                            session, claim.job_id, claim.epoch, ending, self._policy
                        )
            except DBAPIError as error:
                if not is_outage(error) or give_up():
                    raise
                log.warning("the end of the stage waits for the database", error=str(error.orig))
                time.sleep(min(self._settings.beat_seconds, 2.0))
                continue
            log.info("attempt ended", outcome=ending.outcome, state=state, epoch=claim.epoch)
            return state


class _Watch:
    """Looks whether a stage must stop, and sees to it that it does."""

    def __init__(
        self,
        claim: Claim,
        settings: Settings,
        heart: Heart,
        recorder: Recorder,
        stopping: Callable[[], bool],
        started: float,
    ) -> None:
        self._settings = settings
        self._heart = heart
        self._recorder = recorder
        self._stopping = stopping
        limit = claim.spec.timeout_seconds
        self._deadline = None if limit is None else started + limit - claim.used_seconds
        self._kill_at: float | None = None
        self.reason: Stop | None = None

    def look(self, child: Child) -> None:
        now = time.monotonic()
        if self.reason is None:
            self.reason = self._reason(now)
            if self.reason is not None:
                log.info("stopping the stage", reason=self.reason.name)
                child.terminate()
                self._kill_at = now + self._settings.stop_grace_seconds
        # A polite stop turns into a kill when the claim is lost meanwhile, too.
        lost = self.reason in _AT_ONCE or self._lost() is not None
        if lost or (self._kill_at is not None and now >= self._kill_at):
            child.kill()

    def _lost(self) -> Stop | None:
        if self._heart.is_stale or self._recorder.is_stale:
            return Stop.STALE
        if self._heart.silent_seconds > self._settings.kill_seconds:
            return Stop.BLIND
        return None

    def _reason(self, now: float) -> Stop | None:
        lost = self._lost()
        if lost is not None:
            return lost
        if self._heart.is_cancelling:
            return Stop.CANCELLED
        if self._deadline is not None and now >= self._deadline:
            return Stop.TIMEOUT
        if self._recorder.fault is not None:
            return Stop.FAULT
        return Stop.SHUTDOWN if self._stopping() else None


def _pass_on(events: list[StageEvent], recorder: Recorder) -> Finished | Failed | None:
    """Give the events to the recorder, but for the one that ends the stage."""
    said: Finished | Failed | None = None
    for event in events:
        if isinstance(event, Finished | Failed):
            said = event
        else:
            recorder.add(event)
    return said


def _ending(reason: Stop | None, said: Finished | Failed, claim: Claim) -> Ending | None:
    """What became of the attempt. A stage that finished before it could be stopped has finished."""
    if reason is Stop.STALE:
        return None
    if isinstance(said, Finished):
        return Ending.finished(said.result)
    if reason is Stop.CANCELLED:
        return Ending.cancelled()
    if reason in (Stop.SHUTDOWN, Stop.BLIND):
        return Ending.released()
    if reason is Stop.TIMEOUT:
        limit = claim.spec.timeout_seconds
        message = (
            f"The job ran for {limit} s, its `timeout_seconds`, and was stopped in {claim.stage}."
        )
        return Ending.failed(Failure.of(FailureCode.TIMEOUT, message))
    return Ending.failed(said.failure)
