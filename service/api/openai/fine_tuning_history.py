"""Events and checkpoints of a job in the shapes of OpenAI's API."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query

from service import event_sentences
from service.api.faults.redaction import shown
from service.api.http.dependencies import DatabaseDep, JobId
from service.api.http.principal import JobsRead
from service.api.openai import metric_numbers
from service.api.openai.job_objects import unix
from service.api.openai.model_titles import ModelTitles
from service.api.openai.schemas.fine_tuning import (
    CheckpointMetrics,
    FineTuningJobCheckpoint,
    FineTuningJobCheckpointPage,
    FineTuningJobEvent,
    FineTuningJobEventPage,
)
from service.api.openapi.document import problems
from service.api.problems.errors import InvalidRequestError
from service.api.schemas.problems import Fault
from service.store.jobs import queries, timeline
from service.store.tables.jobs import CheckpointRow, EventRow, MetricRow
from service.system import escaping

router = APIRouter(
    prefix="/v1/fine_tuning/jobs/{job_id}",
    tags=["openai"],
    responses=problems(401, 404, 422, 503),
)

_LONGEST_MESSAGE: Final = 4000
_EVENT_ID: Final = r"^ftevent-[0-9a-f]{1,36}-[em][0-9]{1,10}$"
_CHECKPOINT_ID: Final = r"^ftckpt-[0-9a-f]{1,36}-[0-9]{1,10}$"
_LARGEST: Final = 2**31 - 1
_MOST_EVENTS: Final = 1000
"""Scripts ask for hundreds at once to have all numbers of a training."""


@router.get("/events", summary="Events of a fine-tuning job")
def list_fine_tuning_events(
    principal: JobsRead,
    job_id: JobId,
    database: DatabaseDep,
    after: Annotated[
        str | None, Query(max_length=64, description="The last id of the previous page.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=_MOST_EVENTS)] = 20,
) -> FineTuningJobEventPage:
    """Newest first: the history as `message`, and logged steps and evaluations as `metrics`. Each
    written file and each phase is only in the job's own events, `/v1/jobs/{id}/events`."""
    place = None if after is None else _place(job_id, after)
    with database.read() as session:
        queries.job_exists(session, principal.scope, job_id)
        rows, has_more = timeline.newest_first(
            session, principal.scope, job_id, before=place, limit=limit
        )
        attempts = {
            row.epoch: row.number for row in queries.attempts(session, principal.scope, job_id)
        }
    data = [
        _metrics_event(row) if isinstance(row, MetricRow) else _message(row, attempts)
        for row in rows
    ]
    return FineTuningJobEventPage(data=data, has_more=has_more)


def _place(job_id: str, after: str) -> timeline.Place:
    """Raises InvalidRequestError unless `after` is the id of an event of this job."""
    own = f"ftevent-{job_id.removeprefix('job-')}-"
    rest = after.removeprefix(own)
    if not re.fullmatch(_EVENT_ID, after) or rest == after or int(rest[1:]) > _LARGEST:
        raise InvalidRequestError([_no_id(after, "an event")])
    return timeline.Place(rest[0] == "e", int(rest[1:]))


def _no_id(after: str, of_what: str) -> Fault:
    return Fault(
        path="query.after",
        code="invalid_value",
        message=f"must be the id of {of_what} of this job",
        given=shown("after", after),
    )


def _message(row: EventRow, attempts: Mapping[int, int]) -> FineTuningJobEvent:
    sentence = event_sentences.sentence_of(row.type, row.data, attempts.get(row.epoch, 0))
    return FineTuningJobEvent(
        id=f"ftevent-{row.job_id.removeprefix('job-')}-e{row.seq}",
        created_at=unix(row.at),
        level=_level(row),
        message=escaping.terminal(sentence[:_LONGEST_MESSAGE]),
        type="message",
        data=None,
    )


def _level(row: EventRow) -> Any:
    if row.type in ("attempt_failed", "lease_expired"):
        return "warn" if row.data.get("retry") else "error"
    about = (row.data.get("data") or {}) if row.type == "notice" else {}
    if {"split", "reason"} <= about.keys():  # the row that made the job fail
        return "error"
    # A notice with a code is a warning about the spec.
    return "warn" if about.get("code") is not None else "info"


def _metrics_event(row: MetricRow) -> FineTuningJobEvent:
    point = {
        "kind": row.kind,
        "step": row.step,
        "epoch": row.progress_epoch,
        "values": row.values,
    }
    numbers = metric_numbers.by_name(row.kind, row.values)
    return FineTuningJobEvent(
        id=f"ftevent-{row.job_id.removeprefix('job-')}-m{row.seq}",
        created_at=unix(row.at),
        level="info",
        message=escaping.terminal(event_sentences.of_metric(point)[:_LONGEST_MESSAGE]),
        type="metrics",
        data={"step": row.step, **{name: v for name, v in numbers.items() if v is not None}},
    )


@router.get("/checkpoints", summary="Checkpoints of a fine-tuning job")
def list_fine_tuning_checkpoints(
    principal: JobsRead,
    job_id: JobId,
    database: DatabaseDep,
    after: Annotated[
        str | None, Query(max_length=64, description="The last id of the previous page.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 10,
) -> FineTuningJobCheckpointPage:
    """Newest first: those that were not removed, whose names can be used as a `model`."""
    before = None if after is None else _step(job_id, after)
    with database.read() as session:
        job = queries.get_job(session, principal.scope, job_id)
        titles = ModelTitles(session, principal.scope, [job])
        rows, has_more = queries.kept_checkpoints(
            session, principal.scope, job_id, before=before, limit=limit
        )
        metrics = queries.metrics_at(session, principal.scope, job_id, [row.step for row in rows])
    data = [_checkpoint(row, titles, metrics) for row in rows]
    return FineTuningJobCheckpointPage(data=data, has_more=has_more)


def _step(job_id: str, after: str) -> int:
    """Raises InvalidRequestError unless `after` is the id of a checkpoint of this job."""
    own = f"ftckpt-{job_id.removeprefix('job-')}-"
    rest = after.removeprefix(own)
    if not re.fullmatch(_CHECKPOINT_ID, after) or rest == after or int(rest) > _LARGEST:
        raise InvalidRequestError([_no_id(after, "a checkpoint")])
    return int(rest)


def _checkpoint(
    row: CheckpointRow,
    titles: ModelTitles,
    metrics: Mapping[tuple[str, int], Mapping[str, Any]],
) -> FineTuningJobCheckpoint:
    numbers = {
        **metric_numbers.by_name("train", metrics.get(("train", row.step), {})),
        **metric_numbers.by_name("eval", metrics.get(("eval", row.step), {})),
    }
    return FineTuningJobCheckpoint(
        id=f"ftckpt-{row.job_id.removeprefix('job-')}-{row.step}",
        created_at=unix(row.created_at),
        fine_tuned_model_checkpoint=titles.made_by(row.job_id, row.step),
        fine_tuning_job_id=row.job_id,
        metrics=CheckpointMetrics.model_validate({"step": row.step, **numbers}),
        step_number=row.step,
    )
