"""The process of one push: confined and watched like a stage, it asks before it commits."""

import os
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Final

import structlog
from pydantic import ValidationError
from sqlalchemy.exc import SQLAlchemyError

from service.contract.failures import Failure, FailureCode
from service.contract.stage.events import Failed, Finished, ReadyToCommit
from service.contract.stage.stages import PublishResult, StageRequest
from service.contract.states import Stage
from service.settings import Settings
from worker import failures
from worker.processes.private_folder import private_folder
from worker.supervision.confined import confined

log = structlog.get_logger(__name__)

_NICE: Final = 15
"""Of 19: the training has priority."""


class PushProcess:
    """`may_commit` asks the database whether this worker still holds the claim."""

    def __init__(
        self,
        command: list[str],
        settings: Settings,
        request: StageRequest,
        may_commit: Callable[[], bool],
    ) -> None:
        self._claim_check = _ClaimCheck(may_commit)
        self._outcome: Finished | Failed | None = None
        reader, self._permission = os.pipe()
        with ExitStack() as temporary, ExitStack() as started:
            temporary.callback(os.close, reader)
            started.callback(os.close, self._permission)
            private = started.enter_context(private_folder())
            self._process = started.enter_context(
                confined(
                    settings,
                    request,
                    private,
                    command,
                    stage=Stage.PUBLISH,
                    stdin=reader,
                    nice=_NICE,
                )
            )
            self._resources = started.pop_all()

    def poll(self) -> Finished | Failed | None:
        """How it ended; None while it runs."""
        has_exited = self._process.child.has_exited()
        for event in self._process.child.read(0):
            if isinstance(event, ReadyToCommit):
                if self._claim_check.ident is None:
                    self._claim_check.start()
            elif isinstance(event, Finished | Failed):
                self._outcome = _validated(event)
        if has_exited:
            self._process.reap()
            return self._outcome or Failed(failure=self._process.why_ended())
        if self._claim_check.answer is False:
            message = "Not committed: the worker could not confirm that it still runs the job."
            return Failed(failure=Failure.from_code(FailureCode.WORKER_LOST, message))
        if self._claim_check.answer:
            self._claim_check.answer = None
            with suppress(BrokenPipeError):
                os.write(self._permission, b"commit\n")
        return None

    def close(self) -> None:
        self._resources.close()


def _validated(outcome: Finished | Failed) -> Finished | Failed:
    if isinstance(outcome, Failed):
        return Failed(failure=failures.small(outcome.failure))
    try:
        PublishResult.model_validate(outcome.result)
    except ValidationError:
        message = "The result of a push has another form than it must have"
        return Failed(failure=Failure.from_code(FailureCode.STAGE_UNTRUSTWORTHY, message))
    return outcome


class _ClaimCheck(threading.Thread):
    """On its own thread: the database may be slow, and the main thread supervises the stage."""

    def __init__(self, ask: Callable[[], bool]) -> None:
        super().__init__(name="push", daemon=True)
        self._ask = ask
        self.answer: bool | None = None

    def run(self) -> None:
        try:
            self.answer = self._ask()
        except SQLAlchemyError as error:
            log.warning("claim.check_failed", error=str(error.__cause__ or error))
            self.answer = False
