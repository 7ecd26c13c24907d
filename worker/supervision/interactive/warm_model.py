"""A process with a model in memory, which answers one prediction after the other."""

import os
from contextlib import AbstractContextManager, ExitStack
from typing import Final

import structlog
from pydantic import BaseModel, ValidationError

from service.contract.failures import Failure
from service.contract.stage.prediction_events import PREDICTOR_EVENT, Ask, PredictorEvent, Stop
from service.settings import Settings
from service.store.interactive.prediction_claims import PredictionClaim
from worker.devices.gpu_locks import HeldGpus
from worker.processes import spawn, stage_command
from worker.processes.private_folder import private_folder
from worker.processes.spawn import Start
from worker.supervision import project_access, stage_views
from worker.supervision.confined import Confined, confined
from worker.supervision.interactive import prediction_request
from worker.supervision.interactive.prediction_request import Source

log = structlog.get_logger(__name__)

_LOG: Final = "log"
_SHOWN: Final = 2000
_NICE: Final = 10
"""By the scheduler's weights an answer has a tenth of a core that it shares with a training; there
a token took 14 times as long as alone. With 19 it took 90 times as long; with 0 the training would
lose half of its speed."""


class WarmModel:
    """Started on the main thread; it may be closed on another one. It keeps `held`, the GPU that it
    is on, until then."""

    def __init__(
        self,
        settings: Settings,
        source: Source,
        held: HeldGpus,
        *,
        start: Start = spawn.new_interpreter,
    ) -> None:
        """Raises StageError if it cannot be confined as the operator requires, and OSError."""
        self.source = source
        self.on_gpu = bool(held.gpus)
        with ExitStack() as stack:
            stack.enter_context(held)
            stage_views.require_sandbox(settings)
            self._folder = stack.enter_context(private_folder())
            reader, self._orders = os.pipe()
            os.set_blocking(self._orders, False)
            stack.callback(os.close, self._orders)
            try:
                self._process = stack.enter_context(self._started(settings, held, reader, start))
            finally:
                os.close(reader)
            self._child = self._process.child
            self._open = stack.pop_all()
        log.info("model.started", pid=self.pid, gpus=held.gpus)

    def _started(
        self, settings: Settings, held: HeldGpus, stdin: int, start: Start
    ) -> AbstractContextManager[Confined]:
        settings = project_access.without_secret(settings, self.source.project_id)
        request = prediction_request.build(settings, self.source, self._folder, list(held.gpus))
        file = self._folder / "request.json"
        file.write_text(request.model_dump_json())
        shown = prediction_request.shown(request)
        shares_cpu = not held.gpus and settings.prediction_cpu_bytes > 0
        return confined(
            settings,
            request.stage,
            self._folder,
            stage_command.predictor_command(file),
            view=lambda environment: stage_views.of_prediction(
                settings, request.stage, environment, self._folder, shown
            ),
            log_file=self._folder / _LOG,
            start=start,
            stdin=stdin,
            locks=held.descriptors,
            nice=_NICE if shares_cpu else 0,
            goes_first=True,
        )

    @property
    def pid(self) -> int:
        return self._child.pid

    def has_exited(self) -> bool:
        return self._child.has_exited()

    def ask(self, claimed: PredictionClaim) -> None:
        """Raises OSError if the process reads no more."""
        file = self._folder / f"{claimed.id}.json"
        file.write_text(claimed.request.model_dump_json())
        self._order(Ask(id=claimed.id, file=file))

    def stop(self, claimed: PredictionClaim) -> None:
        """Raises OSError if the process reads no more."""
        self._order(Stop(id=claimed.id))

    def forget(self, claimed: PredictionClaim) -> None:
        """Remove the request, which is not read again."""
        (self._folder / f"{claimed.id}.json").unlink(missing_ok=True)

    def _order(self, order: BaseModel) -> None:
        # Shorter than PIPE_BUF, so written whole or not at all.
        os.write(self._orders, order.model_dump_json().encode() + b"\n")

    def read(self, seconds: float) -> list[PredictorEvent]:
        """What has arrived; waits for the first one at most `seconds`. Lines of any other form are
        logged and left out: the input is untrusted."""
        events = []
        for line in self._child.read_lines(seconds):
            try:
                events.append(PREDICTOR_EVENT.validate_json(line))
            except (ValidationError, RecursionError) as error:
                log.error("prediction_event.invalid", error=str(error)[:500])
        return events

    def why_ended(self) -> Failure:
        """After it has exited, or was killed: the reason."""
        self._process.reap()
        output = (self._folder / _LOG).read_text(errors="replace")[-_SHOWN:]
        log.warning("model.ended", pid=self.pid, status=self._process.status, output=output)
        failure = self._process.why_ended()
        if self.breach is not None:
            return failure
        message = failure.message.replace("The stage", "The process with the model")
        return failure.model_copy(update={"message": message})

    @property
    def breach(self) -> Failure | None:
        """Which limit of the machine it has exceeded, if any."""
        return self._process.breach

    def close(self) -> None:
        """End the process, and free its memory and its GPU."""
        pid = self.pid
        self._child.kill()
        self._open.close()
        log.info("model.closed", pid=pid)
