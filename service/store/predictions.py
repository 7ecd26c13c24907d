"""Predictions as users see them. What workers and the reconciler do is in `prediction_claims`."""

import json
import secrets
import time
from collections.abc import Sequence
from hashlib import sha256
from typing import Final, NamedTuple

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from service.contract.predictions import (
    DEADLINE_SECONDS,
    MOST_BYTES,
    UNFINISHED,
    PredictedModel,
    PredictionRequest,
    PredictionState,
)
from service.contract.routing import CPU_QUEUE, PREDICT_QUEUE
from service.errors import (
    InvalidPredictionError,
    ModelNotFoundError,
    PredictionNotFoundError,
    SourceJobError,
    TooManyPredictionsError,
)
from service.store import jobs, lineage, projects, quotas
from service.store.database import db_now
from service.store.fleet import Fleet, LiveWorker
from service.store.models import JobRow, PredictionRow
from service.store.scope import Scope

MOST_UNFINISHED: Final = 16
"""Of a project."""
KEPT_SECONDS: Final = 3600.0
HEAD_START: Final = 2.0
"""Seconds that the API has to send the message, before the reconciler does."""
URGENT: Final = 0
"""Somebody waits for the answer: the message is read before those of jobs."""
_PREFIX: Final = "pred-"
_UNKNOWN: Final = ("unknown_job", "unknown_checkpoint")
_WRITES_TEXT: Final = ("chat", "preference", "causal-lm")


class Progress(NamedTuple):
    state: PredictionState
    texts: list[str]
    """Of each choice, as far as it has been written. An attempt that replaces another one writes
    them again from the beginning, with the same seed."""


def new_id() -> str:
    return f"{_PREFIX}{time.time_ns():016x}{secrets.token_hex(8)}"


def is_id(text: str) -> bool:
    """Whether a message is about a prediction."""
    return text.startswith(_PREFIX)


def insert(session: Session, project: str, request: PredictionRequest) -> str:
    """The id of a queued prediction.

    Raises ModelNotFoundError, SourceJobError for a model that is not finished or whose files were
    removed, InvalidPredictionError, TooManyPredictionsError, ProjectArchivedError. The project's
    row is locked, so that of requests at the same time no more get through than may.
    """
    content = _resolved(session, Scope(project), request).model_dump(mode="json")
    if len(json.dumps(content)) > MOST_BYTES:
        raise InvalidPredictionError(f"The request has more than {MOST_BYTES:,} bytes as JSON.")
    owner = quotas.locked(session, project)
    if owner.archived_at is not None:
        raise projects.archived_error(owner.name)
    mine = PredictionRow.project_id == project
    unfinished = select(func.count()).where(mine, PredictionRow.state.in_(UNFINISHED))
    if (session.scalar(unfinished) or 0) >= MOST_UNFINISHED:
        raise TooManyPredictionsError(
            f"The project {owner.name} may have {MOST_UNFINISHED} unfinished predictions. Wait "
            "until one has ended."
        )
    row = PredictionRow(
        id=new_id(),
        project_id=project,
        request=content,
        model_key=_key(project, content["model"]),
        state=PredictionState.QUEUED,
        created_at=db_now(),
        deadline_at=db_now(DEADLINE_SECONDS),
        expires_at=db_now(KEPT_SECONDS),
        next_publish_at=db_now(HEAD_START),
    )
    session.add(row)
    session.flush()
    return row.id


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


def _key(project: str, model: dict[str, object]) -> str:
    text = json.dumps([project, model], sort_keys=True)
    return sha256(text.encode()).hexdigest()


def able_workers(fleet: Fleet) -> list[LiveWorker]:
    """Those that answer predictions, busy or not."""
    queues = (PREDICT_QUEUE, CPU_QUEUE)
    return [worker for queue in queues for worker in fleet.can_run(queue, min_gpus=0)]


def queue_of(fleet: Fleet) -> str:
    """Workers for predictions alone come first: they keep the model in memory."""
    return PREDICT_QUEUE if fleet.can_run(PREDICT_QUEUE, min_gpus=0) else CPU_QUEUE


def messages(prediction_ids: Sequence[str], fleet: Fleet) -> list[jobs.Message]:
    """What wakes workers for queued predictions."""
    queue = queue_of(fleet)
    return [jobs.Message(each, queue, URGENT) for each in prediction_ids]


def get(session: Session, scope: Scope, prediction_id: str) -> PredictionRow:
    """Raises PredictionNotFoundError."""
    query = select(PredictionRow).where(
        PredictionRow.id == prediction_id,
        scope.of(PredictionRow.project_id),
        PredictionRow.expires_at > db_now(),
    )
    row = session.scalars(query).one_or_none()
    if row is None:
        raise PredictionNotFoundError(prediction_id)
    return row


def progress(session: Session, scope: Scope, prediction_id: str) -> Progress:
    """As often as a waiting request asks: without request and result. Raises
    PredictionNotFoundError."""
    query = select(PredictionRow.state, PredictionRow.texts).where(
        PredictionRow.id == prediction_id, scope.of(PredictionRow.project_id)
    )
    found = session.execute(query).one_or_none()
    if found is None:
        raise PredictionNotFoundError(prediction_id)
    return Progress(PredictionState(found.state), found.texts or [])


def unfinished(session: Session, scope: Scope) -> dict[str, int]:
    """State → predictions that have not ended."""
    query = (
        select(PredictionRow.state, func.count())
        .where(PredictionRow.state.in_(UNFINISHED), scope.of(PredictionRow.project_id))
        .group_by(PredictionRow.state)
    )
    found = {str(state): count for state, count in session.execute(query)}
    return {state.value: found.get(state, 0) for state in sorted(UNFINISHED)}


def cancel(session: Session, scope: Scope, prediction_id: str) -> bool:
    """End it now; False if it had ended. Its worker stops generating within a second. Raises
    PredictionNotFoundError."""
    cancelled = (
        update(PredictionRow)
        .where(
            PredictionRow.id == prediction_id,
            scope.of(PredictionRow.project_id),
            PredictionRow.state.in_(UNFINISHED),
        )
        .values(state=PredictionState.CANCELLED, ended_at=db_now(), lease_until=None)
        .returning(PredictionRow.id)
    )
    found = session.scalar(cancelled, execution_options={"synchronize_session": False})
    if found is None:
        get(session, scope, prediction_id)
    return found is not None
