"""Answers predictions: claims one, has a process with its model answer it, and records the end.

Runs in the process of the Celery task and never imports torch. The model stays in memory for a
while, until another one is asked for, or a training needs its device.
"""

import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Final

import structlog
from sqlalchemy.exc import SQLAlchemyError

from service.contract.failures import Failure, StageError
from service.contract.interactive.predictions import PredictionResult
from service.contract.routing import CPU_QUEUE
from service.contract.stage.prediction_events import Answered, Refused, Written
from service.settings import Settings
from service.store.database import Database
from service.store.interactive import prediction_claims
from service.store.interactive.prediction_claims import PredictionClaim, Waiting
from worker import failures
from worker.devices.gpus import Device
from worker.devices.spare_device import SpareDevice
from worker.lifecycle.shutdown import Shutdown
from worker.processes import spawn
from worker.processes.spawn import Start
from worker.supervision.interactive import prediction_request
from worker.supervision.interactive.prediction_request import Source
from worker.supervision.interactive.prediction_turns import Turn
from worker.supervision.interactive.warm_model import WarmModel

log = structlog.get_logger(__name__)

LEASE_SECONDS: Final = 15.0
"""The longest lease: a prediction whose worker was killed is soon answered by another one."""
YIELD_SECONDS: Final = 5.0
"""How much longer an answer may take that has begun when a training needs the device."""
_IDLE_SECONDS: Final = 300.0
"""How long a model stays in memory after its last answer."""
_POLL_SECONDS: Final = 0.1
_WRITE_SECONDS: Final = 0.2
_LOOK_SECONDS: Final = 1.0
_IDLE_LOOK_SECONDS: Final = 0.3
_STOP_SECONDS: Final = 3.0
_AGAIN_SECONDS: Final = 2.0
_LOST_SECONDS: Final = 3.0
"""How long a model stays idle although another one is asked for, which this process may be about to
load."""
_LINGER_SECONDS: Final = 1.0
"""How long another model waits after an answer, because the same user may ask again, and loading a
model takes longer."""
_MOST_WAITING: Final = 200


class Predictions:
    """`shutdown`: whether this worker is stopping."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        gpus: Sequence[Device] = (),
        *,
        start: Start = spawn.new_interpreter,
        shutdown: Shutdown | None = None,
    ) -> None:
        self._database = database
        self._settings = settings
        self._device = SpareDevice(database, settings, gpus)
        self._start = start
        self._shutdown = shutdown or Shutdown()
        self._lease_seconds = min(settings.lease_seconds, LEASE_SECONDS)
        self._turn = Turn()
        self._warm: WarmModel | None = None
        self._used_at = 0.0
        self._queues: Sequence[str] = ()
        self._worker_id = ""
        self._lock = threading.Lock()
        """Held while predictions are answered: only then the model is not closed by `_idle`."""

    def wake(self, worker_id: str, queues: Sequence[str]) -> None:
        """Answer all that wait and that there is a device for. `queues`: those of this worker."""
        self._queues = [queue for queue in queues if queue == CPU_QUEUE]
        self._worker_id = worker_id
        with self._lock:
            refused: set[str] = set()
            try:
                while not self._shutdown.is_requested():
                    claimed = self._claim(refused)
                    if claimed is None:
                        break
                    if not self._answer(claimed):
                        refused.add(claimed.model_key)
            except SQLAlchemyError as error:
                # The row is unchanged or its lease expires: the reconciler sends it again.
                log.error("database.unreachable", error=str(error.__cause__ or error))

    def close(self) -> None:
        """End the process with the model, if there is one."""
        with self._lock:
            self._close()

    # ---- which one ------------------------------------------------------------------------------

    def _claim(self, refused: set[str]) -> PredictionClaim | None:
        while True:
            chosen = self._next(refused)
            if chosen is None or self._shutdown.is_requested() or self._job_waits():
                return None
            if self._lingers(chosen):
                time.sleep(_POLL_SECONDS)
                continue
            claimed = self._claim_one(chosen)
            if claimed is not None:
                return claimed
            # Another worker was faster.

    def _lingers(self, chosen: Waiting) -> bool:
        """Whether the model stays in memory for a moment, although another one is asked for."""
        now = time.monotonic()
        if self._warm is None or chosen.model_key == self._turn.model_key:
            return False
        return now - self._used_at < _LINGER_SECONDS and not (
            self._turn.is_over(now) or self._warm.has_exited()
        )

    def _next(self, refused: Collection[str] = ()) -> Waiting | None:
        with self._database.read() as session:
            waiting = prediction_claims.waiting(session, _MOST_WAITING)
        return self._turn.next_of(waiting, refused, time.monotonic())

    def _claim_one(self, chosen: Waiting) -> PredictionClaim | None:
        with self._database.write() as session:
            return prediction_claims.claim(session, chosen.id, self._worker_id, self._lease_seconds)

    def _job_waits(self) -> bool:
        """Whether this process is needed for a job, which comes first."""
        if self._settings.predictions_first:
            return False
        with self._database.read() as session:
            return prediction_claims.job_waits(session, self._queues, with_gpus=False)

    # ---- the model ------------------------------------------------------------------------------

    def _answer(self, claimed: PredictionClaim, *, may_start: bool = True) -> bool:
        """False: there is no device for its model now. `may_start`: a process for it, which only
        the main thread can."""
        with structlog.contextvars.bound_contextvars(prediction_id=claimed.id):
            return self._answer_bound(claimed, may_start=may_start)

    def _answer_bound(self, claimed: PredictionClaim, *, may_start: bool) -> bool:
        began = time.monotonic()
        try:
            source = prediction_request.resolve(self._database, self._settings, claimed)
            model = self._loaded(source, may_start=may_start)
        except StageError as error:
            self._end(claimed, error.failure)
            return True
        except (OSError, ValueError) as error:
            log.exception("model.start_failed")
            self._end(claimed, failures.from_exception(error))
            return True
        if model is None:
            with self._database.write() as session:
                prediction_claims.release(session, claimed, _AGAIN_SECONDS)
            return False
        # Not before: what cannot be loaded leaves the model in memory its turn.
        self._turn.answered(claimed.model_key, claimed.project_id, began)
        attempt = _Attempt(self._database, claimed, model, self._lease_seconds, self._must_yield)
        is_usable = attempt.follow()
        if not is_usable:
            self._close()
        self._used_at = time.monotonic()
        log.info("prediction.ended", how=attempt.how, seconds=round(self._used_at - began, 2))
        return attempt.how != "yielded"

    def _loaded(self, source: Source, *, may_start: bool) -> WarmModel | None:
        """The process with this model, started if need be; None without a device for it. Raises
        StageError, OSError, ValueError."""
        if not may_start and (self._warm is None or not self._is_usable(self._warm, source)):
            return None
        if self._warm is not None and not self._is_usable(self._warm, source):
            self._close()
        if self._warm is None:
            held = self._device.take(source.bytes)
            if held is None:
                return None
            self._warm = WarmModel(self._settings, source, held, start=self._start)
            threading.Thread(target=self._idle, args=(self._warm,), daemon=True).start()
        return self._warm

    def _is_usable(self, warm: WarmModel, source: Source) -> bool:
        is_same = warm.source.identity == source.identity
        return is_same and not warm.has_exited() and not self._is_wanted(warm)

    def _is_wanted(self, warm: WarmModel) -> bool:
        return self._device.is_wanted(on_gpu=warm.on_gpu, model_bytes=warm.source.bytes)

    def _must_yield(self) -> bool:
        """Whether a training needs the device, or a job this process."""
        if self._shutdown.is_requested():
            return True
        if self._settings.predictions_first:
            return False
        assert self._warm is not None, "it answers"
        return self._is_wanted(self._warm) or self._job_waits()

    def _close(self) -> None:
        warm, self._warm = self._warm, None
        if warm is not None:
            warm.close()

    def _end(self, claimed: PredictionClaim, ended: PredictionResult | Failure) -> None:
        with self._database.write() as session:
            if not prediction_claims.end(session, claimed, ended):
                log.info("claim.lost", epoch=claimed.epoch)

    # ---- between predictions --------------------------------------------------------------------

    def _idle(self, warm: WarmModel) -> None:
        """On a thread: answer what waits for this model although the message about it reached
        another process of this machine. Close the model when no request has come for long, when it
        has ended, when a training needs its device, or when requests wait for other models only."""
        while self._warm is warm:
            time.sleep(_IDLE_LOOK_SECONDS)
            if not self._lock.acquire(blocking=False):
                continue  # it answers
            try:
                if self._warm is warm:
                    self._look(warm)
            except SQLAlchemyError as error:
                log.warning("database.unreachable", error=str(error.__cause__ or error))
            finally:
                self._lock.release()

    def _look(self, warm: WarmModel) -> None:
        chosen = self._next()
        if self._is_over(warm, chosen):
            self._close()
        elif chosen is not None and chosen.model_key == self._turn.model_key:
            claimed = None if self._job_waits() else self._claim_one(chosen)
            if claimed is not None:
                self._answer(claimed, may_start=False)

    def _is_over(self, warm: WarmModel, chosen: Waiting | None) -> bool:
        idle = time.monotonic() - self._used_at
        if idle > _IDLE_SECONDS or self._shutdown.is_requested():
            return True
        if warm.has_exited() or self._is_wanted(warm):
            return True
        if chosen is None or chosen.model_key == self._turn.model_key:
            return False
        return (
            self._turn.is_over(time.monotonic()) or min(idle, chosen.waited_seconds) > _LOST_SECONDS
        )


class _Attempt:
    """Follows one answer to its end. Stops it when its time is up, when its request has been
    withdrawn, and when a training needs the device."""

    def __init__(
        self,
        database: Database,
        claimed: PredictionClaim,
        model: WarmModel,
        lease_seconds: float,
        must_yield: Callable[[], bool],
    ) -> None:
        self._database = database
        self._claimed = claimed
        self._model = model
        self._lease_seconds = lease_seconds
        self._must_yield = must_yield
        now = time.monotonic()
        self._deadline = now + claimed.seconds_left
        self._renew_at = now
        self._write_at = self._look_at = now
        self._yield_at: float | None = None
        self._texts: list[str] | None = None
        self.how = "lost"

    def follow(self) -> bool:
        """Whether the model can answer the next one."""
        try:
            self._model.ask(self._claimed)
        except OSError:  # it has ended
            return self._crashed()
        try:
            return self._followed()
        finally:
            with suppress(OSError):
                self._model.forget(self._claimed)

    def _followed(self) -> bool:
        while True:
            ended = self._read()
            if ended is not None:
                return self._end(ended)
            if self._model.has_exited():
                ended = self._read()  # its last events
                if ended is None:
                    return self._crashed()
                self._end(ended)
                return False
            now = time.monotonic()
            if now > self._deadline:
                self._end(prediction_claims.LEASES.too_slow)
                return self._stop()
            if not self._renewed(now):
                return self._stop()
            if self._is_wanted(now):
                self.how = "yielded"
                with self._database.write() as session:
                    prediction_claims.release(session, self._claimed, _AGAIN_SECONDS)
                return False

    def _read(self) -> PredictionResult | Failure | None:
        """The end of the answer, if it has come."""
        for event in self._model.read(_POLL_SECONDS):
            if event.id != self._claimed.id:
                continue
            if isinstance(event, Written):
                self._texts = event.texts
            elif isinstance(event, Answered) and event.result.is_small():
                return event.result
            elif isinstance(event, Refused):
                return failures.small(event.failure)
        return None

    def _renewed(self, now: float) -> bool:
        """Write what is new of the texts, and renew the lease; False: the claim is lost."""
        has_text = self._texts is not None and now >= self._write_at
        if not has_text and now < self._renew_at:
            return True
        texts, self._texts = (self._texts, None) if has_text else (None, self._texts)
        self._write_at = now + _WRITE_SECONDS
        self._renew_at = now + min(self._lease_seconds / 3, _LOOK_SECONDS)
        with self._database.write() as session:
            return prediction_claims.renew(session, self._claimed, self._lease_seconds, texts)

    def _is_wanted(self, now: float) -> bool:
        """Whether the device must be free now: a training has waited for the grace of an answer."""
        if now < self._look_at:
            return False
        self._look_at = now + _LOOK_SECONDS
        if not self._must_yield():
            self._yield_at = None
            return False
        self._yield_at = self._yield_at or now + YIELD_SECONDS
        return now >= self._yield_at

    def _stop(self) -> bool:
        """Have the model stop writing; whether it did."""
        with suppress(OSError):
            self._model.stop(self._claimed)
            until = time.monotonic() + _STOP_SECONDS
            while time.monotonic() < until and not self._model.has_exited():
                if self._read() is not None:
                    return True
        return False

    def _end(self, ended: PredictionResult | Failure) -> bool:
        with self._database.write() as session:
            is_written = prediction_claims.end(session, self._claimed, ended)
        if is_written:
            self.how = "failed" if isinstance(ended, Failure) else "answered"
        return True

    def _crashed(self) -> bool:
        self.how = "crashed"
        failure = self._model.why_ended()
        with self._database.write() as session:
            if self._model.breach is not None:  # another try would end likewise
                prediction_claims.end(session, self._claimed, failure)
            else:
                prediction_claims.crashed(session, self._claimed, failure)
        return False
