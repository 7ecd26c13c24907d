"""Makes previews: claims one, runs its stage like a job's `prepare`, and records what it found.

Runs in the process of the Celery task, on its main thread, and never imports torch.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog
from pydantic import ValidationError
from sqlalchemy.exc import SQLAlchemyError

from service.contract.failures import Failure, FailureCode, StageError
from service.contract.interactive.previews import PreviewResult
from service.contract.stage.events import Failed, Finished, StageEvent
from service.contract.stage.stages import StageRequest
from service.settings import Settings
from service.store.database import Database
from service.store.interactive import preview_claims
from service.store.interactive.preview_claims import PreviewClaim
from worker import failures
from worker.lifecycle.shutdown import Shutdown
from worker.processes import private_folder as private_folders
from worker.processes import spawn, stage_command
from worker.processes.private_folder import private_folder
from worker.processes.spawn import Start
from worker.supervision import project_access, stage_request, stage_views
from worker.supervision.confined import Confined, confined
from worker.tracking.trackers import NullTracker

log = structlog.get_logger(__name__)

LEASE_SECONDS: Final = 15.0
"""The longest lease: a preview whose worker was killed is soon made by another one."""

Command = Callable[[Path], list[str]]
Outcome = PreviewResult | Failure | None
"""None: the claim was lost, or another worker is to make the preview."""


class Previews:
    """`command` returns the command line of the stage that reads the given request, and `start`
    starts a process with it; `shutdown`: whether this worker is stopping."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        *,
        command: Command = stage_command.preview_command,
        start: Start = spawn.new_interpreter,
        shutdown: Shutdown | None = None,
    ) -> None:
        self._database = database
        self._settings = settings
        self._command = command
        self._start = start
        self._shutdown = shutdown or Shutdown()
        self._lease_seconds = min(settings.lease_seconds, LEASE_SECONDS)

    def wake(self, preview_id: str, worker_id: str) -> None:
        """Make the preview, unless another worker does or it has ended."""
        with structlog.contextvars.bound_contextvars(preview_id=preview_id):
            try:
                with self._database.write() as session:
                    claimed = preview_claims.claim(
                        session, preview_id, worker_id, self._lease_seconds
                    )
                if claimed is not None:
                    self._make(claimed)
            except SQLAlchemyError as error:
                # The row is unchanged or its lease expires: the reconciler sends it again.
                log.error("database.unreachable", error=str(error.__cause__ or error))

    def _make(self, claimed: PreviewClaim) -> None:
        started = time.monotonic()
        try:
            outcome = self._attempt(claimed)
            self._end(claimed, outcome)
        finally:
            self._remove_folder(claimed)
        how = "given up" if outcome is None else type(outcome).__name__
        log.info("preview.ended", outcome=how, seconds=round(time.monotonic() - started, 2))

    def _end(self, claimed: PreviewClaim, outcome: Outcome) -> None:
        with self._database.write() as session:
            if outcome is None:  # changes nothing if the claim was lost
                preview_claims.release(session, claimed)
            elif not preview_claims.end(session, claimed, outcome):
                log.warning("claim.lost", epoch=claimed.epoch)

    def _remove_folder(self, claimed: PreviewClaim) -> None:
        """Only this attempt's, if another one may have begun by now: the sweep takes the rest."""
        folder = self._settings.workspace(claimed.id)
        private_folders.remove(folder / "attempts" / str(claimed.epoch))
        with suppress(OSError):
            (folder / "job.log").unlink(missing_ok=True)
            (folder / "attempts").rmdir()
            folder.rmdir()
            with self._database.write() as session:
                preview_claims.forget_folder(session, claimed)

    # ---- the attempt --------------------------------------------------------------------------

    def _attempt(self, claimed: PreviewClaim) -> Outcome:
        try:
            stage_views.require_sandbox(self._settings)
            settings = project_access.settings_for(self._database, self._settings, claimed.as_job)
            request = stage_request.build(self._database, settings, NullTracker(), claimed.as_job)
            request = request.model_copy(update={"preview": claimed.options})
            (request.attempt_dir / "request.json").write_text(request.model_dump_json())
            return self._run(claimed, request, settings)
        except StageError as error:
            return error.failure
        except (OSError, ValueError) as error:
            log.exception("stage.start_failed")
            return failures.from_exception(error)

    def _run(self, claimed: PreviewClaim, request: StageRequest, settings: Settings) -> Outcome:
        command = self._command(request.attempt_dir / "request.json")
        attempt = _Attempt(self._database, claimed, self._shutdown, self._lease_seconds)
        with (
            private_folder() as private,
            confined(
                settings, request, private, command, start=self._start, goes_first=True
            ) as process,
        ):
            reported = attempt.follow(process)
            process.reap()
        if attempt.is_over:
            return attempt.failure
        if isinstance(reported, Finished):
            return validated(reported)
        if process.breach is not None:
            return process.breach
        return failures.small(reported.failure) if reported is not None else process.why_ended()


class _Attempt:
    """Follows the stage to its end; stops it when its time is up, when the claim is lost, and when
    this worker shuts down."""

    def __init__(
        self, database: Database, claimed: PreviewClaim, shutdown: Shutdown, lease_seconds: float
    ) -> None:
        self._database = database
        self._claimed = claimed
        self._shutdown = shutdown
        self._lease_seconds = lease_seconds
        now = time.monotonic()
        self._renew_at = now + lease_seconds / 3
        self._deadline = now + claimed.seconds_left
        self._reported: Finished | Failed | None = None
        self.is_over = False
        """Whether the stage was stopped before it had ended."""
        self.failure: Failure | None = None
        """Why, if that is the end of the preview."""

    def follow(self, process: Confined) -> Finished | Failed | None:
        """The event with which the stage ended, if it sent one."""

        def supervise() -> None:
            if self._reported is None and self._must_stop():
                self.is_over = True
                process.child.kill()

        process.follow(self._read, supervise)
        return self._reported

    def _read(self, events: list[StageEvent]) -> None:
        for event in events:
            if isinstance(event, Finished | Failed):
                self._reported = event

    def _must_stop(self) -> bool:
        now = time.monotonic()
        if now > self._deadline:
            self.failure = preview_claims.LEASES.too_slow
            return True
        if self._shutdown.is_requested():
            return True
        if now < self._renew_at:
            return False
        self._renew_at = now + self._lease_seconds / 3
        with self._database.write() as session:
            return not preview_claims.renew(session, self._claimed, self._lease_seconds)


def validated(reported: Finished) -> PreviewResult | Failure:
    """Validate the stage's result; treat it as untrusted input."""
    try:
        result = PreviewResult.model_validate(reported.result)
        is_small = result.is_small()
    except (ValidationError, RecursionError):
        is_small = False
    if not is_small:
        message = "The result of the preview has another form than it must have"
        return Failure.from_code(FailureCode.STAGE_UNTRUSTWORTHY, message)
    return result
