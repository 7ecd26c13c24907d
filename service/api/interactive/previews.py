"""Previews: a worker makes them, and the request waits for it a while."""

from functools import partial
from typing import Annotated, Any, Final

from anyio import to_thread
from fastapi import APIRouter, Depends, Query, Request, Response
from sqlalchemy.orm import Session

from service.api.http.dependencies import ParsedBody, Services, ServicesDep, path_id
from service.api.http.principal import JobsRead, JobsWrite
from service.api.interactive import waiting_request
from service.api.interactive.waiting_request import BriefAnswers
from service.api.jobs import submission
from service.api.openapi.document import SPEC_BODY, problems
from service.api.schemas.previews import Preview
from service.contract.interactive.previews import (
    DEFAULT_ROWS,
    DEFAULT_SHOWN,
    MOST_ROWS,
    MOST_SHOWN,
    PreviewOptions,
)
from service.contract.routing import CPU_QUEUE, PREVIEW_QUEUE
from service.errors import PreviewNotFoundError
from service.settings import Settings
from service.store.interactive import previews
from service.store.scheduling.fleet import Fleet
from service.store.scope import Scope

router = APIRouter(tags=["jobs"])

MOST_WAITING: Final = 32
"""Requests of this process that wait for a preview; more are answered 202 at once."""
PreviewId = Annotated[
    str,
    Depends(path_id("preview", r"preview-[0-9a-f]{1,32}", PreviewNotFoundError)),
]


@router.post(
    "/v1/jobs/preview",
    response_model=Preview,
    summary="See what a job would make of its data",
    openapi_extra=SPEC_BODY,
    responses={
        **waiting_request.responses(Preview),
        **problems(400, 401, 409, 413, 415, 422, 429, 503),
    },
)
async def preview_job(
    principal: JobsWrite,
    body: ParsedBody,
    request: Request,
    services: ServicesDep,
    rows: Annotated[
        int, Query(ge=1, le=MOST_ROWS, description="Read this many rows of each split.")
    ] = DEFAULT_ROWS,
    shown: Annotated[
        int, Query(ge=0, le=MOST_SHOWN, description="Show this many examples in full.")
    ] = DEFAULT_SHOWN,
    wait: Annotated[
        float,
        Query(ge=0, le=waiting_request.LONGEST_WAIT, description="Seconds to wait for the result."),
    ] = 10.0,
    *,
    force: submission.Force = False,
) -> Response:
    """A worker reads the first rows and tokenizes them as `prepare` of a job would; no job is made.
    An invalid spec is answered with 422 and every fault at once. A project has at most four
    unfinished previews, and its last twenty are kept, for an hour."""
    options = PreviewOptions(rows=rows, shown=shown)
    begin = partial(_begin, services, principal.project, body, options, force=force)
    preview_id = await to_thread.run_sync(begin)
    scope, waiters = Scope(principal.project), request.app.state.preview_waiters
    return await _ANSWERS.wait(services, scope, preview_id, request, waiters, wait)


@router.get(
    "/v1/previews/{preview_id}",
    response_model=Preview,
    summary="One preview",
    responses=problems(401, 404, 422, 503),
)
def get_preview(principal: JobsRead, preview_id: PreviewId, services: ServicesDep) -> Preview:
    """Its result, once it has ended."""
    return _ANSWERS.read(services, principal.scope, preview_id)


def _begin(
    services: Services, project: str, body: Any, options: PreviewOptions, *, force: bool
) -> str:
    """Raises InvalidSpecError, TooManyPreviewsError, ProjectArchivedError."""
    spec = submission.valid_spec(body, services, project, force=force)
    with services.database.write(audited=False) as session:
        preview_id = previews.insert(session, project, spec, options)
        fleet = Fleet.read(session.connection(), services.settings.alive_seconds)
        (message,) = previews.messages(session, [preview_id], fleet)
    services.dispatcher.enqueue_soon(message)
    return preview_id


def _why_waiting(session: Session, settings: Settings) -> str | None:
    fleet = Fleet.read(session.connection(), settings.alive_seconds)
    able = previews.able_workers(fleet)
    if not able:
        return (
            f"no live worker serves the queue `{CPU_QUEUE}`: start one with `finetune worker "
            f"--queues {CPU_QUEUE}`"
        )
    if not any(worker.is_free(PREVIEW_QUEUE) for worker in able):
        return (
            "every worker that makes previews is busy: `finetune worker --queues "
            f"{PREVIEW_QUEUE}` starts one for them alone"
        )
    return None


_ANSWERS: Final = BriefAnswers(previews.REQUESTS, Preview.from_row, _why_waiting)
