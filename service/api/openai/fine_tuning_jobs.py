"""Fine-tuning jobs in the shapes of OpenAI's API, over the same functions as the native routes."""

from functools import partial
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Query, Request

from service.api.faults.redaction import cut, shown
from service.api.http.dependencies import (
    DatabaseDep,
    DispatcherDep,
    JobId,
    ParsedBody,
    Services,
    ServicesDep,
    SettingsDep,
)
from service.api.http.principal import JobsRead, JobsWrite
from service.api.jobs import submission
from service.api.jobs.submission import IdempotencyKey
from service.api.openai import examples, job_requests
from service.api.openai.job_objects import fine_tuning_job
from service.api.openai.model_titles import ModelTitles
from service.api.openai.schemas.fine_tuning import FineTuningJob, FineTuningJobPage
from service.api.openapi.document import problems
from service.api.problems.errors import InvalidRequestError, InvalidSpecError
from service.api.schemas.problems import Fault
from service.contract.fields import patterns
from service.contract.spec.spec import JobSpec
from service.errors import JobEndedError
from service.jobs import commands
from service.jobs.disk_space import with_reserve
from service.store.database import Database
from service.store.jobs import listing, queries
from service.store.scope import Scope

router = APIRouter(prefix="/v1/fine_tuning/jobs", tags=["openai"])

_PROBLEMS: Final[dict[int | str, dict[str, Any]]] = problems(401, 404, 409, 422, 503)
_MOST_LABELS: Final = 16
_LONGEST_LABEL: Final = (64, 512)
_FILE: Final = {"type": "string", "maxLength": 100}
_OBJECT: Final = {"type": "object", "maxProperties": 16}
_CREATE_BODY: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "description": "OpenAI's fields, and every section of a spec (`task`, "
                    "`dataset`, `training`, `peft`, `resources`, …), which is merged over what "
                    "they say.",
                    "required": ["model", "training_file"],
                    "properties": {
                        "model": {
                            "type": "string",
                            "maxLength": 1024,
                            "description": "Hub id, allowed path, or the `ft:` name of a model or "
                            "a checkpoint.",
                        },
                        "training_file": _FILE,
                        "validation_file": _FILE,
                        "suffix": {"type": "string", "maxLength": 64},
                        "seed": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1},
                        "method": {
                            "type": "object",
                            "properties": {"type": {"enum": ["supervised", "dpo"]}},
                        },
                        "hyperparameters": _OBJECT,
                        "integrations": {"type": "array", "maxItems": 20, "items": _OBJECT},
                        "metadata": _OBJECT,
                    },
                },
                "example": {
                    "model": "HuggingFaceTB/SmolLM2-135M-Instruct",
                    "training_file": "file-0199a0b1c2d3e4f5a6b7c8d9",
                    "method": {
                        "type": "supervised",
                        "supervised": {"hyperparameters": {"n_epochs": 3}},
                    },
                    "suffix": "support",
                },
            }
        },
    }
}
RetryCount = Annotated[
    int,
    Header(
        alias="x-stainless-retry-count",
        ge=0,
        le=1_000_000,
        description="How often the client has sent this request before, which clients of OpenAI "
        "say of themselves. All attempts together do what one of them does.",
    ),
]
_METADATA: Final[dict[str, Any]] = {
    "parameters": [
        {
            "name": "metadata",
            "in": "query",
            "required": False,
            "style": "deepObject",
            "explode": True,
            "description": "`metadata[key]=value`: jobs that match all. `metadata=null`: jobs "
            "without metadata.",
            "schema": {
                "type": "object",
                "maxProperties": _MOST_LABELS,
                "additionalProperties": {"type": "string", "maxLength": 512},
            },
        }
    ]
}


@router.post(
    "",
    summary="Create a fine-tuning job",
    openapi_extra=_CREATE_BODY,
    responses=problems(400, 401, 409, 413, 415, 422, 429, 503),
)
def create_fine_tuning_job(
    request: Request,
    principal: JobsWrite,
    body: ParsedBody,
    services: ServicesDep,
    idempotency_key: IdempotencyKey = None,
    retry_count: RetryCount = 0,
) -> FineTuningJob:
    """Queues a job of the task `chat` (`supervised`) or `preference` (`dpo`), or of the `task` in
    the body. `auto` becomes numbers, which the job reports. All attempts of a call make one job, as
    with an Idempotency-Key."""
    sent = {"fine_tuning_job": body}
    attempt = None
    if idempotency_key is None:
        digest = submission.digest_of({"key": principal.key_id, **sent})
        attempt = services.submissions.attempt(digest, retry_count, request.state.received_at)
    made = submission.create(
        services,
        principal.project,
        partial(_spec, body, services, principal.project),
        idempotency_key,
        sent,
        attempt=attempt,
    )
    return _read(services.database, Scope(principal.project), made.job_id)


def _spec(body: Any, services: Services, project: str) -> JobSpec:
    """Raises InvalidSpecError, in the words of the request."""
    count = partial(examples.count, services.settings, services.database, Scope(project))
    translation = job_requests.translate(body, count)
    findings = submission.examine(translation.spec, services, Scope(project))
    if findings.faults or findings.spec is None:
        raise InvalidSpecError(
            [translation.in_words_of_request(fault) for fault in findings.faults]
        )
    return findings.spec


@router.get(
    "",
    summary="List fine-tuning jobs",
    openapi_extra=_METADATA,
    responses=problems(401, 422, 503),
)
def list_fine_tuning_jobs(
    principal: JobsRead,
    request: Request,
    database: DatabaseDep,
    after: Annotated[
        str | None,
        Query(pattern=patterns.JOB_ID, description="The last id of the previous page."),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> FineTuningJobPage:
    """Newest first: every job of the project, however it was submitted."""
    wanted = _filter(request)
    with database.read() as session:
        rows, has_more = listing.list_jobs(
            session, principal.scope, wanted, after=after, limit=limit, has_specs=True
        )
        titles = ModelTitles(session, principal.scope, rows)
    return FineTuningJobPage(data=[fine_tuning_job(row, titles) for row in rows], has_more=has_more)


def _filter(request: Request) -> listing.JobFilter:
    """Raises InvalidRequestError."""
    labels: list[tuple[str, str]] = []
    faults = []
    has_none = False
    for name, value in request.query_params.multi_items():
        if name == "metadata" and value == "null":
            has_none = True
        elif name.startswith("metadata"):
            key = name.removeprefix("metadata[").removesuffix("]")
            longest_key, longest_value = _LONGEST_LABEL
            is_label = name == f"metadata[{key}]" and len(key) <= longest_key
            if is_label and len(value) <= longest_value and "\x00" not in key + value:
                labels.append((key, value))
            else:
                faults.append(_no_label(name, value))
    if len(labels) > _MOST_LABELS or (labels and has_none):
        faults.append(_no_label("metadata", "null" if has_none else ""))
    if faults:
        raise InvalidRequestError(faults[:_MOST_LABELS])
    return listing.JobFilter(metadata=labels, has_no_metadata=has_none)


def _no_label(name: str, value: str) -> Fault:
    return Fault(
        path=f"query.{cut(name)}",
        code="invalid_value",
        message=f"must be `metadata[key]=value`, at most {_MOST_LABELS} times, or only "
        "`metadata=null`",
        given=shown(name, value),
    )


@router.get("/{job_id}", summary="One fine-tuning job", responses=problems(401, 404, 422, 503))
def get_fine_tuning_job(principal: JobsRead, job_id: JobId, database: DatabaseDep) -> FineTuningJob:
    """Any job, however it was submitted."""
    return _read(database, principal.scope, job_id)


@router.post("/{job_id}/cancel", summary="Cancel a fine-tuning job", responses=_PROBLEMS)
def cancel_fine_tuning_job(
    principal: JobsWrite,
    job_id: JobId,
    database: DatabaseDep,
    dispatcher: DispatcherDep,
    settings: SettingsDep,
    retry_count: RetryCount = 0,
) -> FineTuningJob:
    """`cancelled` at once; `finished_at` is null until a running one has stopped, within seconds.

    409 when the job has ended.
    """
    try:
        with_reserve(
            settings, lambda: commands.cancel(database, dispatcher, principal.scope, job_id)
        )
    except JobEndedError:
        # The answer to an earlier attempt, which cancelled the job, may be lost.
        if not (retry_count and _read(database, principal.scope, job_id).status == "cancelled"):
            raise
    return _read(database, principal.scope, job_id)


@router.post("/{job_id}/pause", summary="Pause a fine-tuning job", responses=_PROBLEMS)
def pause_fine_tuning_job(
    principal: JobsWrite, job_id: JobId, database: DatabaseDep
) -> FineTuningJob:
    """A waiting job is paused at once; a running one is `running` until it stops at a checkpoint.

    409 when the job has ended or is being cancelled.
    """
    commands.pause(database, principal.scope, job_id)
    return _read(database, principal.scope, job_id)


@router.post("/{job_id}/resume", summary="Resume a fine-tuning job", responses=_PROBLEMS)
def resume_fine_tuning_job(
    principal: JobsWrite, job_id: JobId, database: DatabaseDep, dispatcher: DispatcherDep
) -> FineTuningJob:
    """Queued again, to continue from its latest checkpoint.

    409 when the job has ended or is being cancelled; a job that is not paused does not change.
    """
    commands.resume(database, dispatcher, principal.scope, job_id)
    return _read(database, principal.scope, job_id)


def _read(database: Database, scope: Scope, job_id: str) -> FineTuningJob:
    """Raises JobNotFoundError."""
    with database.read() as session:
        row = queries.get_job(session, scope, job_id)
        return fine_tuning_job(row, ModelTitles(session, scope, [row]))
