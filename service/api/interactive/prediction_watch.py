"""Predictions of requests: asked for, watched without a thread of their own, and cancelled when
no client waits for them any more."""

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Final, NamedTuple

from anyio import CancelScope, sleep, to_thread
from fastapi import Request
from sqlalchemy.orm import Session

from service.api.faults.redaction import shown
from service.api.http.dependencies import Services
from service.api.http.limits import Waiters
from service.api.problems.errors import ClientClosedError, InvalidRequestError
from service.api.schemas.problems import Fault
from service.contract.failures import Failure, FailureCode
from service.contract.fields.paths import PathNotAllowedError, resolve_under_roots
from service.contract.interactive.predictions import (
    DEADLINE_SECONDS,
    UNFINISHED,
    PredictionRequest,
    PredictionResult,
    PredictionState,
)
from service.contract.routing import CPU_QUEUE, PREDICT_QUEUE
from service.errors import (
    DomainError,
    InvalidPredictionError,
    ModelNotFoundError,
    NoWorkerError,
    PredictionFailedError,
    PredictionNotFoundError,
    PredictionTimeoutError,
    TooManyPredictionsError,
)
from service.settings import Settings
from service.store.database import Database
from service.store.interactive import predictions
from service.store.interactive.prediction_claims import trains_on
from service.store.interactive.predictions import Progress
from service.store.scheduling.fleet import Fleet, LiveWorker
from service.store.scope import Scope
from service.store.tables.interactive import PredictionRow

MOST_WAITING: Final = 64
"""Requests of this process that wait for predictions."""
_MARGIN: Final = 30.0
"""Seconds that the reconciler needs to fail a prediction past its deadline."""
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 0.5
_GROWTH: Final = 1.2
PATH_STARTS: Final = ("/", ".", "~")
_OF_THE_REQUEST: Final = frozenset(
    {
        FailureCode.MISSING_COLUMN,
        FailureCode.UNREADABLE_ROW,
        FailureCode.LABEL_MISMATCH,
        FailureCode.MODEL_ACCESS_DENIED,
        FailureCode.UNSAFE_WEIGHTS,
        FailureCode.INVALID_MODEL,
        FailureCode.MODEL_TOO_LARGE,
        FailureCode.UNSUPPORTED_ARCHITECTURE,
        FailureCode.SLOW_TOKENIZER,
        FailureCode.SEQUENCE_TOO_LONG,
        FailureCode.NO_PAD_TOKEN,
        FailureCode.INVALID_OPTION,
    }
)
"""The same request would fail again."""
_START: Final = f"`finetune worker --queues {PREDICT_QUEUE}` starts one for predictions alone"


class Asked(NamedTuple):
    """Predictions of one request."""

    database: Database
    scope: Scope
    ids: list[str]


@contextmanager
def room(waiters: Waiters) -> Iterator[None]:
    """Raises TooManyPredictionsError."""
    with waiters.take() as has_room:
        if not has_room:
            raise TooManyPredictionsError(
                f"{waiters.most} requests wait for predictions. Try again in a moment."
            )
        yield


def begin(
    services: Services, project: str, requests: Sequence[PredictionRequest], *, needs_worker: bool
) -> Asked:
    """Queue predictions, all or none.

    Raises what `predictions.insert` raises, InvalidRequestError for a path that the operator does
    not allow, and NoWorkerError if one is needed and none can answer now.
    """
    for request in requests:
        _require_allowed(services, request)
    with services.database.write(audited=False) as session:
        ids = [predictions.insert(session, project, request) for request in requests]
        if needs_worker and (why := why_waiting(session, services.settings)) is not None:
            raise NoWorkerError(why)
        fleet = Fleet.read(session.connection(), services.settings.alive_seconds)
        messages = predictions.messages(session, ids, fleet)
    for message in messages:
        services.dispatcher.enqueue_soon(message)
    return Asked(services.database, Scope(project), ids)


def _require_allowed(services: Services, request: PredictionRequest) -> None:
    name = request.model.name_or_path
    if name is None or not name.startswith(PATH_STARTS):
        return
    try:
        resolve_under_roots(name, services.settings.model_roots, "FINETUNE_MODEL_ROOTS")
    except PathNotAllowedError as error:
        given = shown("model", name)
        fault = Fault(path="model", code="path_not_allowed", message=str(error), given=given)
        raise InvalidRequestError([fault]) from None


def why_waiting(session: Session, settings: Settings) -> str | None:
    """Why no worker can answer now, and what to do; None: one can."""
    fleet = Fleet.read(session.connection(), settings.alive_seconds)
    able = predictions.able_workers(fleet)
    if not able:
        return (
            "No live worker answers predictions: start one with `finetune worker --queues "
            f"{CPU_QUEUE}`; {_START}."
        )
    if all(_gives_way(session, settings, worker) for worker in able):
        return (
            "A training uses the CPU, and comes first: try again when it has ended (`finetune "
            "list` shows it). With FINETUNE_PREDICTION_CPU_BYTES small models answer meanwhile."
        )
    # The worker that answers one will soon be free for the next.
    if any(worker.is_free(PREDICT_QUEUE) or worker.answers for worker in able):
        return None
    return (
        "Every worker that answers predictions is busy with jobs, which come first: try again "
        f"when one has ended (`finetune workers` shows what they do); {_START}."
    )


def _gives_way(session: Session, settings: Settings, worker: LiveWorker) -> bool:
    """Whether it has no GPU, and leaves the CPU to a training of its machine."""
    shares = settings.predictions_first or settings.prediction_cpu_bytes > 0
    return not shares and not worker.most_gpus and trains_on(session, worker.hostname)


@asynccontextmanager
async def cancelled_unless_ended(asked: Asked) -> AsyncIterator[None]:
    """Cancel the prediction unless it has ended when the block ends, for whatever reason."""
    try:
        yield
    finally:
        # Also when the server stops, which cancels this task.
        with CancelScope(shield=True):
            await to_thread.run_sync(_cancel, asked)


async def progress(asked: Asked, request: Request) -> AsyncIterator[list[Progress]]:
    """How far each of the predictions is, as soon as that changes and at least every half second,
    until all have ended.

    Raises ClientClosedError when the client has disconnected, PredictionTimeoutError.
    """
    until, pause = time.monotonic() + DEADLINE_SECONDS + _MARGIN, _FIRST_PAUSE
    before: list[Progress] = []
    while time.monotonic() < until:
        found = await to_thread.run_sync(_read, asked)
        yield found
        if not any(each.state in UNFINISHED for each in found):
            return
        pause = min(pause * _GROWTH, _LONGEST_PAUSE) if found == before else _FIRST_PAUSE
        before = found
        await sleep(pause)
        if await request.is_disconnected():
            raise ClientClosedError("The client disconnected before the answer was ready.")
    raise PredictionTimeoutError(
        f"It did not end within {DEADLINE_SECONDS + _MARGIN:.0f} s, although its deadline is over: "
        "check that the reconciler runs."
    )


def results(asked: Asked) -> list[PredictionResult]:
    """Of predictions that have ended. Raises the error of the first that has no result."""
    with asked.database.read() as session:
        rows = [predictions.REQUESTS.get(session, asked.scope, each) for each in asked.ids]
    return [_result(row) for row in rows]


def _result(row: PredictionRow) -> PredictionResult:
    if row.state == PredictionState.CANCELLED:
        raise PredictionFailedError("It was cancelled.")
    if row.failure is not None:
        raise _error_of(Failure.model_validate(row.failure))
    return PredictionResult.model_validate(row.result)


def _error_of(failure: Failure) -> DomainError:
    text = f"{failure.message} {failure.action}"
    if failure.code is FailureCode.MODEL_NOT_FOUND:
        return ModelNotFoundError(text)
    if failure.code is FailureCode.TIMEOUT:
        return PredictionTimeoutError(text)
    if failure.code in _OF_THE_REQUEST:
        return InvalidPredictionError(text)
    return PredictionFailedError(text)


def _read(asked: Asked) -> list[Progress]:
    with asked.database.read() as session:
        return [predictions.progress(session, asked.scope, each) for each in asked.ids]


def _cancel(asked: Asked) -> None:
    with asked.database.write(audited=False) as session:
        for prediction_id in asked.ids:
            try:
                predictions.cancel(session, asked.scope, prediction_id)
            except PredictionNotFoundError:
                continue
