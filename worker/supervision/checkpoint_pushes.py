"""Pushes checkpoints to the Hub during the training: one at a time, the newest first.

A push runs in its own process, because the training must not have the token. The user sees how it
ends; a failed push does not fail the job, because `publish` pushes the finished model.
"""

import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import structlog

from service.contract.failures import RULES, Failure
from service.contract.stage.events import CheckpointSaved, Failed, Finished, Notice, StageEvent
from service.contract.stage.stages import PublishResult, StageRequest
from service.contract.states import Stage
from service.settings import Settings
from worker import failures
from worker.processes import stage_command
from worker.supervision.push_process import PushProcess

log = structlog.get_logger(__name__)

Command = Callable[[Path], list[str]]


class CheckpointPushes:
    """Of a training whose `hub.strategy` pushes checkpoints; any other stage has none to push.
    `offer` and `holds` are called on the recorder's thread, the rest on the main thread.

    `may_commit` asks the database whether this worker still holds the claim.
    """

    def __init__(
        self,
        settings: Settings,
        request: StageRequest,
        may_commit: Callable[[], bool],
        command: Command = stage_command.push_command,
    ) -> None:
        self._settings = settings
        self._request = request
        self._may_commit = may_commit
        self._command = command
        self._lock = threading.Lock()
        self._waiting: deque[CheckpointSaved] = deque()
        self._skipped: list[int] = []
        self._left_out: list[int] = []
        """Steps skipped in favour of the current one."""
        self._current: CheckpointSaved | None = None
        self._process: PushProcess | None = None
        hub = request.spec.hub
        pushes = hub is not None and hub.pushes_while_training
        self._skips = hub is not None and not hub.always_push
        self._is_over = request.stage is not Stage.TRAIN or not pushes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the push: none outlives its attempt."""
        self.stop()

    def offer(self, saved: CheckpointSaved) -> None:
        """A checkpoint was registered. It replaces the one that waits to be pushed, if any, unless
        `hub.always_push` has each wait for its turn."""
        with self._lock:
            if self._skips:
                self._skipped += [waiting.step for waiting in self._waiting]
                self._waiting.clear()
            self._waiting.append(saved)

    def holds(self, path: str) -> bool:
        """Whether a push reads this folder (relative to the workspace), or must still do so."""
        with self._lock:
            needed = () if self._skips else self._waiting
            return any(saved.path == path for saved in (self._current, *needed) if saved)

    @property
    def is_busy(self) -> bool:
        return self._process is not None

    def poll(self) -> list[StageEvent]:
        """Start the waiting push or check the running one; notices for the user. Never blocks."""
        if self._process is not None:
            outcome = self._process.poll()
            return [] if outcome is None else [self._ended(outcome)]
        saved = self._take()
        if saved is None:
            return []
        try:
            self._process = self._start(saved)
        except OSError as error:
            return [self._ended(Failed(failure=failures.from_exception(error)))]
        return []

    def end(self) -> list[StageEvent]:
        """The training has ended: end the running push; a notice of the steps that it leaves."""
        with self._lock:
            running = [*self._left_out, self._current.step] if self._current is not None else []
            left = [*running, *self._skipped, *(saved.step for saved in self._waiting)]
        was_over, self._is_over = self._is_over, True
        self._close()
        return [] if was_over or not left else [self._not_pushed(left)]

    def _not_pushed(self, steps: list[int]) -> Notice:
        named = ", ".join(map(str, steps))
        then = "The finished model is" if self._skips else "Those that are kept are"
        log.info("checkpoint.not_pushed", steps=steps)
        return Notice(
            message=f"Checkpoints that were not pushed to the Hub while the training ran, because "
            f"pushes take longer than the training from one to the next: steps {named}. "
            f"{then} pushed now, while no GPU is held.",
            data={"not_pushed": steps},
        )

    def stop(self) -> None:
        """End the running push, and start no other."""
        self._is_over = True
        self._close()

    def _take(self) -> CheckpointSaved | None:
        if self._is_over:
            return None
        with self._lock:
            if not self._waiting:
                return None
            self._current = self._waiting.popleft()
            self._left_out, self._skipped = self._skipped, []
            return self._current

    def _start(self, saved: CheckpointSaved) -> PushProcess:
        folder = self._request.workspace / saved.path
        request = self._request.model_copy(update={"checkpoints": [folder]})
        # Not in the attempt's folder, which the training may write: this process has the token.
        file = request.workspace / "push.json"
        file.write_text(request.model_dump_json(indent=1))
        log.info("checkpoint.push_started", step=saved.step)
        return PushProcess(self._command(file), self._settings, request, self._may_commit)

    def _close(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None
        with self._lock:
            self._current = None

    def _ended(self, outcome: Finished | Failed) -> Notice:
        assert self._current is not None
        step = self._current.step
        self._close()
        if isinstance(outcome, Failed):
            return self._failed(step, outcome.failure)
        result = PublishResult.model_validate(outcome.result)
        data: dict[str, Any] = {"step": step, "url": result.hub_url, "commit": result.hub_commit}
        if self._left_out:
            data["left_out"] = self._left_out
        log.info("checkpoint.pushed", step=step, commit=result.hub_commit)
        return Notice(
            message=f"The model of step {step} is on the Hub: {result.hub_url}", data=data
        )

    def _failed(self, step: int, failure: Failure) -> Notice:
        log.warning("checkpoint.push_failed", step=step, code=failure.code)
        message = f"The model of step {step} could not be pushed to the Hub: {failure.message}"
        if not RULES[failure.code].retryable:
            self._is_over = True
            message += " No further checkpoint is pushed in this attempt."
        return Notice(message=message, data={"step": step, "code": failure.code})
