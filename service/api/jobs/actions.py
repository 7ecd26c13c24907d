"""What can be done to a job: pause, resume, cancel, retry, clone, publish, delete."""

from typing import Any, Final

from fastapi import APIRouter, Response

from service.api.faults import semantic
from service.api.faults.collect import collect
from service.api.http.dependencies import (
    DatabaseDep,
    DispatcherDep,
    JobId,
    ParsedBody,
    ServicesDep,
    SettingsDep,
)
from service.api.http.merge_patch import merged
from service.api.http.principal import JobsWrite
from service.api.jobs import submission
from service.api.jobs.page import read_page
from service.api.jobs.submission import Force, IdempotencyKey
from service.api.openapi.document import HUB_BODY, PATCH_BODY, problems
from service.api.problems.errors import InvalidSpecError
from service.api.schemas.jobs import Job, JobDeleted, SubmittedJob
from service.api.schemas.problems import Fault
from service.jobs import commands
from service.jobs.disk_space import with_reserve
from service.store.jobs import queries
from service.store.scope import Scope

router = APIRouter(prefix="/v1/jobs/{job_id}", tags=["jobs"])

_NO_HUB: Final = Fault(path="hub", code="missing_field", message="the body must be a `hub` section")
_PROBLEMS: Final[dict[int | str, dict[str, Any]]] = problems(401, 404, 409, 422, 503)


@router.post("/cancel", summary="Cancel a job", responses=_PROBLEMS)
def cancel_job(
    principal: JobsWrite,
    job_id: JobId,
    database: DatabaseDep,
    dispatcher: DispatcherDep,
    settings: SettingsDep,
) -> Job:
    """A waiting job is cancelled at once; a running one is `cancelling` until it stops, within
    seconds.

    409 when the job has ended. Repeating the request while it is `cancelling` changes nothing.
    """
    with_reserve(settings, lambda: commands.cancel(database, dispatcher, principal.scope, job_id))
    return read_page(database, principal.scope, job_id, settings)


@router.post("/pause", summary="Pause a job", responses=_PROBLEMS)
def pause_job(
    principal: JobsWrite, job_id: JobId, database: DatabaseDep, settings: SettingsDep
) -> Job:
    """A waiting job is paused at once; a running one is `pausing` until it stops at a checkpoint.

    If the stage ends first, the job is paused before the next stage, or is done. 409 when the job
    has ended or is being cancelled. Repeating the request changes nothing.
    """
    commands.pause(database, principal.scope, job_id)
    return read_page(database, principal.scope, job_id, settings)


@router.post("/resume", summary="Resume a paused job", responses=_PROBLEMS)
def resume_job(
    principal: JobsWrite,
    job_id: JobId,
    database: DatabaseDep,
    dispatcher: DispatcherDep,
    settings: SettingsDep,
) -> Job:
    """The job returns to the queue and continues from its latest checkpoint, with the same results
    as without the pause.

    While it is `pausing`, the pause is withdrawn. 409 when the job has ended or is being cancelled;
    a job that is not paused does not change.
    """
    commands.resume(database, dispatcher, principal.scope, job_id)
    return read_page(database, principal.scope, job_id, settings)


@router.post("/retry", summary="Retry a failed or cancelled job", responses=_PROBLEMS)
def retry_job(
    principal: JobsWrite,
    job_id: JobId,
    database: DatabaseDep,
    dispatcher: DispatcherDep,
    settings: SettingsDep,
) -> Job:
    """Repeats the stage that failed, from its checkpoints; its retries and its running time are
    counted from zero.

    If the stage's inputs were removed, the job restarts at the earlier stage that makes them; the
    event `retried` names what was missing. 409 for a job in any other state, and (`data_gone`) when
    an uploaded file that is needed again was deleted.
    """
    commands.retry(database, dispatcher, settings, principal.scope, job_id)
    return read_page(database, principal.scope, job_id, settings)


@router.post(
    "/clone",
    status_code=201,
    response_model=SubmittedJob,
    summary="Clone a job",
    openapi_extra=PATCH_BODY,
    responses={
        **submission.created("job"),
        **problems(400, 401, 404, 409, 413, 415, 422, 503),
    },
)
def clone_job(
    principal: JobsWrite,
    job_id: JobId,
    body: ParsedBody,
    services: ServicesDep,
    idempotency_key: IdempotencyKey = None,
    *,
    force: Force = False,
) -> Response:
    """Creates a new job from the `spec` of this one, with the body applied as a JSON merge patch
    (RFC 7396).

    `{}` changes nothing, null resets a field to its default. The whole spec is validated as in
    POST /v1/jobs. The original may be in any state and does not change.
    """
    with services.database.read() as session:
        original = queries.get_job(session, principal.scope, job_id)
    return submission.submit(
        services,
        original.project_id,
        merged(original.spec, body),
        idempotency_key,
        {"clone": job_id, "patch": body},
        force=force,
        cloned_from=job_id,
    )


@router.post(
    "/publish",
    summary="Push the finished model",
    openapi_extra=HUB_BODY,
    responses=problems(400, 401, 404, 409, 410, 413, 415, 422, 503),
)
def publish_job(
    principal: JobsWrite,
    job_id: JobId,
    body: ParsedBody,
    database: DatabaseDep,
    dispatcher: DispatcherDep,
    settings: SettingsDep,
) -> Job:
    """Pushes to the repository in the body, which is a `hub` section; the job's own spec does not
    change.

    The ended job is queued again for this. If the push fails, the job is `failed`, keeps its model,
    and can be retried or published elsewhere. Repeating the request meanwhile changes nothing. 409
    when the job has not ended or has no model, 410 when the model was removed to make room.
    """
    with database.read() as session:
        job = queries.get_job(session, principal.scope, job_id)
        spec, owner = job.spec, Scope(job.project_id)
    findings = collect({**spec, "hub": body})
    if findings.faults or findings.spec is None or findings.spec.hub is None:
        raise InvalidSpecError(findings.faults or [_NO_HUB])
    if findings.spec.hub_token_secret is None and (
        faults := list(semantic.hub_token(settings, database, owner))
    ):
        raise InvalidSpecError(faults)
    commands.publish(database, dispatcher, settings, principal.scope, job_id, findings.spec.hub)
    return read_page(database, principal.scope, job_id, settings)


@router.delete("", summary="Delete an ended job", responses=_PROBLEMS)
def delete_job(
    principal: JobsWrite, job_id: JobId, database: DatabaseDep, settings: SettingsDep
) -> JobDeleted:
    """Deletes its files, history and metrics. The files of its run in MLflow follow; the run itself
    stays unless the operator has set it otherwise, and so does its repository on the Hub.

    409 when the job has not ended; 404 when it does not exist, or was deleted before.
    """
    with_reserve(settings, lambda: commands.delete(database, settings, principal.scope, job_id))
    return JobDeleted(id=job_id)
