"""Supervises one attempt: starts its stage, records its events, renews the lease, and stops it.

Runs in the process of the Celery task and never imports torch.
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import structlog
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from service.contract.failures import Failure, FailureCode, StageError
from service.contract.stage.events import Failed, Finished, Notice, StageEvent
from service.contract.stage.stages import PrepareResult, StageRequest
from service.contract.states import JobState, Stage
from service.settings import Settings
from service.store.database import Database, is_outage
from service.store.jobs import claims, endings
from service.store.jobs.claims import Claim
from service.store.jobs.endings import Ending
from worker import failures
from worker.lifecycle.shutdown import Shutdown
from worker.processes import spawn, stage_command
from worker.processes.child import Child
from worker.processes.private_folder import private_folder
from worker.processes.spawn import Start
from worker.sandbox import layers
from worker.supervision import host_lack, project_access, stage_request, stage_views
from worker.supervision.checkpoint_pushes import CheckpointPushes
from worker.supervision.confined import Confined, confined
from worker.supervision.event_recorder import EventRecorder
from worker.supervision.hang_detector import cpu_seconds
from worker.supervision.heartbeat import Heartbeat
from worker.supervision.stage_reports import StageReports
from worker.supervision.stop_policy import SOFT, Stop, StopPolicy
from worker.supervision.system_metrics import SystemSampler
from worker.tracking.shipper import BackgroundShipper
from worker.tracking.trackers import Tracker

log = structlog.get_logger(__name__)

# How long events and endings wait for an unreachable database, before the lease may expire.
OUTAGE_LIMIT_SECONDS = 3600.0
LAST_PUSH_SECONDS = 30.0

Command = Callable[[StageRequest, Path], list[str]]


class Supervisor:
    """`shutdown`: whether this worker is stopping; `command` returns a stage's command line, and
    `start` starts a process with it."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        tracker: Tracker,
        *,
        command: Command = stage_command.stage_command,
        start: Start = spawn.new_interpreter,
        shutdown: Shutdown | None = None,
    ) -> None:
        self._database = database
        self._settings = settings
        self._tracker = tracker
        self._command = command
        self._start = start
        self._shutdown = shutdown or Shutdown()
        self._policy = endings.Policy(settings.crash_limit, settings.retry_backoff_seconds)

    def supervise(self, claim: Claim, locks: tuple[int, ...] = ()) -> JobState | None:
        """Run the claimed stage and record its ending; the job's state, None if the claim was lost.

        `locks`: descriptors of the locks on the claim's GPUs, which the stage's processes inherit.
        """
        workspace = self._settings.workspace(claim.job_id)
        with Heartbeat(self._database, self._settings, claim) as heartbeat:
            ending = self._attempt(claim, workspace, heartbeat, locks)
            if ending is None:
                log.warning("claim.lost", epoch=claim.epoch)
                return None
            return self._end(claim, ending, self._gives_up(heartbeat))

    # ---- the attempt --------------------------------------------------------------------------

    def _attempt(
        self, claim: Claim, workspace: Path, heartbeat: Heartbeat, locks: tuple[int, ...]
    ) -> Ending | None:
        try:
            stage_request.remove_leftovers(self._database, claim, workspace)
            stage_views.require_sandbox(self._settings)
            settings = project_access.settings_for(self._database, self._settings, claim)
            request = stage_request.build(self._database, self._settings, self._tracker, claim)
            request_file = request.attempt_dir / "request.json"
            request_file.write_text(request.model_dump_json(indent=1))
        except StageError as error:
            return Ending.failed(error.failure)
        except SQLAlchemyError as error:
            log.warning("stage.start_failed", error=str(error.__cause__ or error))
            return Ending.released()
        except (OSError, ValueError) as error:
            log.exception("stage.start_failed")
            return Ending.failed(self._failure_of(error))
        shipping = BackgroundShipper(self._database, self._tracker, claim.job_id, workspace)
        pushes = self._pushes(settings, claim, request)
        recording = EventRecorder(self._database, claim, workspace, pushes=pushes)
        with recording as recorder, shipping, pushes:
            try:
                return self._run(settings, claim, request, heartbeat, recorder, pushes, locks)
            except OSError as error:
                failure = self._failure_of(error)
                if not failure.is_lack:
                    raise
                log.warning("host.lacks", error=str(error))
                return Ending.failed(failure)

    def _failure_of(self, error: Exception) -> Failure:
        """Of an error of this process, not of the stage."""
        failure = host_lack.of_worker(error) or failures.from_exception(error)
        return host_lack.measured(failure, self._settings)

    def _pushes(self, settings: Settings, claim: Claim, request: StageRequest) -> CheckpointPushes:
        def may_commit() -> bool:
            with self._database.read() as session:
                return (
                    claims.requested_state(session, claim.job_id, claim.epoch) is JobState.RUNNING
                )

        return CheckpointPushes(settings, request, may_commit)

    def _run(
        self,
        settings: Settings,
        claim: Claim,
        request: StageRequest,
        heartbeat: Heartbeat,
        recorder: EventRecorder,
        pushes: CheckpointPushes,
        locks: tuple[int, ...],
    ) -> Ending | None:
        """`settings`: with the Hub token that the job may use."""
        self._report_missing_isolation(claim, recorder)
        command = self._command(request, request.attempt_dir / "request.json")
        with (
            private_folder() as private,
            confined(
                settings, request, private, command, start=self._start, locks=locks
            ) as process,
        ):
            child = process.child
            log.info(
                "stage.started",
                stage=claim.stage,
                epoch=claim.epoch,
                pid=child.pid,
                gpus=claim.gpus,
            )
            taken = partial(cpu_seconds, child.pid)
            stop_policy = StopPolicy(
                claim, self._settings, heartbeat, recorder, self._shutdown, taken
            )
            with self._sampler(child, claim, recorder):
                outcome = self._relay_events(process, request, stop_policy, recorder, pushes)
            process.reap()
            if isinstance(outcome, Finished):
                self._await_last_push(child, stop_policy, recorder, pushes)
        log.info("stage.ended", stage=claim.stage, status=process.status, reason=stop_policy.reason)
        if not recorder.drain(self._gives_up(heartbeat)) or heartbeat.is_stale:
            return self._unrecorded(recorder)
        # After a breach, what the stage has reported itself came of that.
        if outcome is None or (process.breach is not None and not isinstance(outcome, Finished)):
            outcome = Failed(failure=process.why_ended())
        if isinstance(outcome, Failed):
            outcome = Failed(failure=host_lack.measured(outcome.failure, self._settings))
        return _ending(stop_policy, outcome, claim.stage, self._settings.home)

    def _report_missing_isolation(self, claim: Claim, recorder: EventRecorder) -> None:
        """Once for each stage that works with the user's files."""
        missing = layers.missing(self._settings)
        if missing and claim.attempt == 1 and claim.stage is not Stage.PUBLISH:
            message = f"The sandbox is incomplete here; `{claim.stage}` could: {'; '.join(missing)}"
            data = {"stage": claim.stage, "missing": missing}
            recorder.add(Notice(message=message, data=data))

    def _sampler(self, child: Child, claim: Claim, recorder: EventRecorder) -> SystemSampler:
        return SystemSampler(
            child.pid,
            recorder.add,
            claim.created_at,
            self._settings.system_metrics_seconds,
            disk=self._settings.home,
            gpus=claim.gpus,
        )

    def _relay_events(
        self,
        process: Confined,
        request: StageRequest,
        stop_policy: StopPolicy,
        recorder: EventRecorder,
        pushes: CheckpointPushes,
    ) -> Finished | Failed | None:
        """Record events until the stage has ended, and stop it if it must stop."""
        reports = StageReports(request, recorder)

        def take(events: list[StageEvent]) -> None:
            for event in events:
                stop_policy.record(event)
            reports.take(events)

        def supervise() -> None:
            if reports.refusal is not None:
                process.child.kill()
            stop_policy.apply(process.child)
            self._push(stop_policy, recorder, pushes)

        # A stage that reports faster than the database stores has to wait.
        process.follow(take, supervise, recorder.has_room)
        return reports.outcome()

    def _push(
        self, stop_policy: StopPolicy, recorder: EventRecorder, pushes: CheckpointPushes
    ) -> None:
        if stop_policy.reason is not None:
            pushes.stop()
        for notice in pushes.poll():
            recorder.add(notice)

    def _await_last_push(
        self,
        child: Child,
        stop_policy: StopPolicy,
        recorder: EventRecorder,
        pushes: CheckpointPushes,
    ) -> None:
        """Give the running push a short time: `publish` waits for it, and the GPU is idle. What
        waits is left to `publish`, which holds no GPU."""
        deadline = time.monotonic() + LAST_PUSH_SECONDS
        while pushes.is_busy and time.monotonic() < deadline:
            stop_policy.apply(child)
            self._push(stop_policy, recorder, pushes)
            time.sleep(0.05)
        for notice in pushes.end():
            recorder.add(notice)

    def _unrecorded(self, recorder: EventRecorder) -> Ending | None:
        if recorder.fault is None:
            return None
        message = f"The events of the stage could not be recorded ({recorder.fault})."
        return Ending.failed(Failure.from_code(FailureCode.INTERNAL, message))

    # ---- its end ------------------------------------------------------------------------------

    def _gives_up(self, heartbeat: Heartbeat) -> Callable[[], bool]:
        """Whether to stop retrying and let the lease expire; at once if this worker shuts down."""
        deadline = time.monotonic() + OUTAGE_LIMIT_SECONDS

        def is_over() -> bool:
            unreachable = heartbeat.seconds_since_beat > self._settings.kill_seconds
            return time.monotonic() > deadline or (unreachable and self._shutdown.is_requested())

        return is_over

    def _end(self, claim: Claim, ending: Ending, give_up: Callable[[], bool]) -> JobState | None:
        """Write the ending; retried during an outage, and never written twice."""
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
                log.warning("ending.postponed", error=str(error.orig))
                time.sleep(self._settings.outage_retry_seconds)
                continue
            log.info("attempt.ended", outcome=ending.outcome, state=state, epoch=claim.epoch)
            return state


def _ending(
    stop_policy: StopPolicy, outcome: Finished | Failed, stage: Stage, home: Path
) -> Ending | None:
    """How the attempt ended. A stage that finished before it could be stopped has finished."""
    if stop_policy.reason is Stop.STALE:
        return None
    if isinstance(outcome, Finished) and stage is Stage.PREPARE:
        return Ending.finished(PrepareResult.model_validate(outcome.result).stored(home))
    if isinstance(outcome, Finished):
        return Ending.finished(outcome.result)
    if stop_policy.reason is Stop.CANCELLED:
        return Ending.cancelled()
    if stop_policy.reason in SOFT or stop_policy.reason is Stop.UNREACHABLE:
        return Ending.released()
    return Ending.failed(stop_policy.failure or outcome.failure)
