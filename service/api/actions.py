"""What can be done to a job: pause, resume, cancel, retry, clone, publish, delete."""

from typing import Any, Final

from fastapi import APIRouter, Response

from service.api import submission
from service.api.dependencies import (
    DatabaseDep,
    DispatcherDep,
    JobId,
    JsonBody,
    ServicesDep,
    SettingsDep,
)
from service.api.errors import InvalidSpecError
from service.api.faults.collect import collect
from service.api.job_page import read_page
from service.api.merge_patch import merged
from service.api.openapi import HUB_BODY, PATCH_BODY, problems
from service.api.schemas.jobs import JobDeleted, JobPage, SubmittedJob
from service.api.schemas.problems import Fault
from service.api.submission import IdempotencyKey
from service.jobs import commands
from service.store import queries

router = APIRouter(prefix="/v1/jobs/{job_id}", tags=["jobs"])

_NO_HUB: Final = Fault(path="hub", code="missing_field", message="the body must be a `hub` section")
_PROBLEMS: Final[dict[int | str, dict[str, Any]]] = problems(401, 404, 409, 422, 503)


@router.post("/cancel", summary="Cancel a job", responses=_PROBLEMS)
def cancel_job(
    job_id: JobId, database: DatabaseDep, dispatcher: DispatcherDep, settings: SettingsDep
) -> JobPage:
    """At once if it waits; a running one stops within seconds and is `cancelling` until then.

    409 when it has ended. Asking again while it is `cancelling` changes nothing.
    """
    commands.cancel(database, dispatcher, job_id)
    return read_page(database, job_id, settings)


@router.post("/pause", summary="Pause a job", responses=_PROBLEMS)
def pause_job(job_id: JobId, database: DatabaseDep, settings: SettingsDep) -> JobPage:
    """At once if it waits; a running one stops at a checkpoint and is `pausing` until then.

    A stage that ends before it can stop has ended: the job is paused before the next one, or done.
    409 when the job has ended or is being cancelled. Asking again changes nothing.
    """
    commands.pause(database, job_id)
    return read_page(database, job_id, settings)


@router.post("/resume", summary="Resume a paused job", responses=_PROBLEMS)
def resume_job(
    job_id: JobId, database: DatabaseDep, dispatcher: DispatcherDep, settings: SettingsDep
) -> JobPage:
    """Back to the queue; it goes on from its newest checkpoint as if it had never stopped.

    While it is `pausing` the pause is taken back. 409 when it has ended or is being cancelled; a
    job that is not paused stays as it is.
    """
    commands.resume(database, dispatcher, job_id)
    return read_page(database, job_id, settings)


@router.post("/retry", summary="Retry a failed or cancelled job", responses=_PROBLEMS)
def retry_job(
    job_id: JobId, database: DatabaseDep, dispatcher: DispatcherDep, settings: SettingsDep
) -> JobPage:
    """From the stage that failed, with its checkpoints; its retries and its time begin anew.

    If what that stage needs was removed, it goes on from the earlier stage that makes it; the event
    `retried` names what was missing. 409 for a job in any other state, and (`data_gone`) when an
    uploaded file that is needed again was deleted.
    """
    commands.retry(database, dispatcher, settings, job_id)
    return read_page(database, job_id, settings)


@router.post(
    "/clone",
    status_code=201,
    response_model=SubmittedJob,
    summary="Make a job like this one",
    openapi_extra=PATCH_BODY,
    responses={
        **submission.CREATED,
        **problems(400, 401, 404, 409, 413, 415, 422, 503),
    },
)
def clone_job(
    job_id: JobId,
    body: JsonBody,
    services: ServicesDep,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """A new job, from the `spec` of this one with the body as a JSON merge patch (RFC 7396).

    `{}` changes nothing, null takes a field back to its default. The whole spec is validated as in
    POST /v1/jobs. The original may be in any state and stays as it is.
    """
    with services.database.read() as session:
        original = queries.get_job(session, job_id).spec
    return submission.submit(
        services,
        merged(original, body),
        idempotency_key,
        {"clone": job_id, "patch": body},
        cloned_from=job_id,
    )


@router.post(
    "/publish",
    summary="Push the finished model",
    openapi_extra=HUB_BODY,
    responses=problems(400, 401, 404, 409, 410, 413, 415, 422, 503),
)
def publish_job(
    job_id: JobId,
    body: JsonBody,
    database: DatabaseDep,
    dispatcher: DispatcherDep,
    settings: SettingsDep,
) -> JobPage:
    """To the repository that the body names, a `hub` section; the job's own spec stays as it is.

    An ended job is queued again for this. If it fails, the job is `failed`, keeps its model and can
    be retried, or published elsewhere. Asking again while it does so changes nothing. 409 when it
    has not ended or has no model, 410 when the model was removed to make room.
    """
    with database.read() as session:
        spec = queries.get_job(session, job_id).spec
    findings = collect({**spec, "hub": body})
    if findings.faults or findings.spec is None or findings.spec.hub is None:
        raise InvalidSpecError(findings.faults or [_NO_HUB])
    commands.publish(database, dispatcher, settings, job_id, findings.spec.hub)
    return read_page(database, job_id, settings)


@router.delete("", summary="Delete an ended job", responses=_PROBLEMS)
def delete_job(job_id: JobId, database: DatabaseDep, settings: SettingsDep) -> JobDeleted:
    """With its files, history and numbers; its run in MLflow and its repository on the Hub stay.

    409 when it has not ended; 404 when it is gone, also by a DELETE before this one.
    """
    commands.delete(database, settings, job_id)
    return JobDeleted(id=job_id)
