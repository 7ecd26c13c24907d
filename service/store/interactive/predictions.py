"""Predictions as users see them. What workers and the reconciler do is in `prediction_claims`."""

import json
import secrets
from collections.abc import Sequence
from hashlib import sha256
from typing import Final, NamedTuple

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from service.contract.interactive.predictions import (
    DEADLINE_SECONDS,
    MOST_BYTES,
    UNFINISHED,
    PredictedModel,
    PredictionRequest,
    PredictionState,
)
from service.contract.routing import CPU_QUEUE, PREDICT_QUEUE, Message, MessageKind
from service.errors import (
    InvalidPredictionError,
    ModelNotFoundError,
    PredictionNotFoundError,
    SourceJobError,
    TooManyPredictionsError,
)
from service.store.database import db_now
from service.store.interactive.requests import URGENT, BriefRequests
from service.store.jobs import lineage
from service.store.scheduling.fleet import Fleet, LiveWorker
from service.store.scope import Scope
from service.store.tables.interactive import PredictionRow
from service.store.tables.jobs import JobRow

REQUESTS: Final = BriefRequests(
    PredictionRow,
    "pred",
    most_unfinished=16,
    deadline_seconds=DEADLINE_SECONDS,
    not_found=PredictionNotFoundError,
    too_many=TooManyPredictionsError,
)
_UNKNOWN: Final = ("unknown_job", "unknown_checkpoint")
_WRITES_TEXT: Final = ("chat", "preference", "causal-lm")


class Progress(NamedTuple):
    state: PredictionState
    texts: list[str]
    """The text of each choice, as far as it has been generated. An attempt that replaces another
    one generates them again from the beginning, with the same seed."""


def insert(session: Session, project: str, request: PredictionRequest) -> str:
    """The id of a queued prediction.

    Raises ModelNotFoundError, SourceJobError for a model that is not finished or whose files were
    removed, InvalidPredictionError, TooManyPredictionsError, ProjectArchivedError.
    """
    content = _resolved(session, Scope(project), request).model_dump(mode="json")
    if len(json.dumps(content)) > MOST_BYTES:
        raise InvalidPredictionError(f"The request has more than {MOST_BYTES:,} bytes as JSON.")
    key = sha256(json.dumps([project, content["model"]], sort_keys=True).encode()).hexdigest()
    return REQUESTS.insert(session, project, request=content, model_key=key)


def _resolved(session: Session, scope: Scope, request: PredictionRequest) -> PredictionRequest:
    """With the number of the checkpoint's step, and with a seed: an attempt that replaces a lost
    one writes the same text."""
    model, options = request.model, request.options
    if model.job is None:
        if request.input.kind == "rows":
            raise InvalidPredictionError("Rows are of the task of a job: give one as `model`.")
    else:
        source = _source(session, scope, model)
        _require_fitting(source.job, request.input.kind)
        model = model.model_copy(update={"step": source.step})
    if options.seed is None:
        options = options.model_copy(update={"seed": secrets.randbits(32)})
    return request.model_copy(update={"model": model, "options": options})


def _source(session: Session, scope: Scope, model: PredictedModel) -> lineage.Source:
    assert model.job is not None
    try:
        return lineage.predicted_model(session, scope, model.job, model.step)
    except SourceJobError as error:
        if error.extra.get("reason") not in _UNKNOWN:
            raise
        raise ModelNotFoundError(f"{error.detail[:1].upper()}{error.detail[1:]}.") from error


def _require_fitting(job: JobRow, kind: str) -> None:
    if kind != "rows" and job.task not in _WRITES_TEXT:
        raise InvalidPredictionError(
            f"The model of job {job.id} writes no text, because its task is `{job.task}`: give it "
            f"rows (POST /v1/jobs/{job.id}/predict)."
        )


def able_workers(fleet: Fleet) -> list[LiveWorker]:
    """Those that answer predictions, busy or not."""
    queues = (PREDICT_QUEUE, CPU_QUEUE)
    return [worker for queue in queues for worker in fleet.can_run(queue, min_gpus=0)]


def queue_of(fleet: Fleet) -> str:
    """Workers for predictions alone come first: they keep the model in memory."""
    return PREDICT_QUEUE if fleet.can_run(PREDICT_QUEUE, min_gpus=0) else CPU_QUEUE


def messages(_session: Session, prediction_ids: Sequence[str], fleet: Fleet) -> list[Message]:
    """What wakes workers for queued predictions."""
    queue = queue_of(fleet)
    return [Message(MessageKind.PREDICTION, each, queue, URGENT) for each in prediction_ids]


def progress(session: Session, scope: Scope, prediction_id: str) -> Progress:
    """As often as a waiting request asks: without request and result. Raises
    PredictionNotFoundError."""
    query = select(PredictionRow.state, PredictionRow.texts).where(
        PredictionRow.id == prediction_id, scope.filter(PredictionRow.project_id)
    )
    found = session.execute(query).one_or_none()
    if found is None:
        raise PredictionNotFoundError(prediction_id)
    return Progress(PredictionState(found.state), found.texts or [])


def cancel(session: Session, scope: Scope, prediction_id: str) -> bool:
    """End it now; False if it had ended. Its worker stops generating within a second. Raises
    PredictionNotFoundError."""
    cancelled = (
        update(PredictionRow)
        .where(
            PredictionRow.id == prediction_id,
            scope.filter(PredictionRow.project_id),
            PredictionRow.state.in_(UNFINISHED),
        )
        .values(state=PredictionState.CANCELLED, ended_at=db_now(), lease_until=None)
        .returning(PredictionRow.id)
    )
    found = session.scalar(cancelled, execution_options={"synchronize_session": False})
    if found is None:
        REQUESTS.get(session, scope, prediction_id)
    return found is not None
