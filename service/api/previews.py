"""Previews: a worker makes them, and the request waits for it a while."""

import re
import time
from http import HTTPStatus
from typing import Annotated, Any, Final

from anyio import sleep, to_thread
from fastapi import APIRouter, Depends, Path, Query, Request, Response

from service.api import submission
from service.api.dependencies import ParsedBody, Services, ServicesDep
from service.api.errors import InvalidSpecError
from service.api.limits import Waiters
from service.api.openapi import SPEC_BODY, problems
from service.api.schemas.previews import Preview
from service.api.visitor import JobsRead, JobsWrite
from service.contract.previews import (
    DEFAULT_ROWS,
    DEFAULT_SHOWN,
    MOST_ROWS,
    MOST_SHOWN,
    UNFINISHED,
    PreviewOptions,
    PreviewState,
)
from service.contract.routing import CPU_QUEUE, PREVIEW_QUEUE
from service.contract.spec import JobSpec
from service.errors import PreviewNotFoundError
from service.store import previews
from service.store.database import Database
from service.store.fleet import Fleet
from service.store.scope import Scope

router = APIRouter(tags=["jobs"])

MOST_WAITING: Final = 32
"""Requests of this process that wait for a preview; more are answered 202 at once."""
_LONGEST_WAIT: Final = 60.0
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 1.0
_GROWTH: Final = 1.15
_PREVIEW_ID: Final = re.compile(r"preview-[0-9a-f]{1,32}")
_LOCATION: Final = {"Location": {"required": True, "schema": {"type": "string"}}}
_ANSWERS: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "The preview has ended.", "headers": _LOCATION},
    202: {
        "description": "It has not ended yet: ask for it at `Location`.",
        "model": Preview,
        "headers": _LOCATION,
    },
}


async def _preview_id(
    preview_id: Annotated[
        str,
        Path(
            description="Id of the preview.",
            examples=["preview-0199a0b1c2d37e4f85a6b7c8d9e0f1a2"],
        ),
    ],
) -> str:
    # What cannot be an id must not reach SQL: Postgres refuses a NUL in any text.
    if not _PREVIEW_ID.fullmatch(preview_id):
        raise PreviewNotFoundError(preview_id)
    return preview_id


async def _waiters(request: Request) -> Waiters:
    waiters: Waiters = request.app.state.preview_waiters
    return waiters


@router.post(
    "/v1/jobs/preview",
    response_model=Preview,
    summary="See what a job would make of its data",
    openapi_extra=SPEC_BODY,
    responses={**_ANSWERS, **problems(400, 401, 409, 413, 415, 422, 429, 503)},
)
async def preview_job(
    visitor: JobsWrite,
    body: ParsedBody,
    services: ServicesDep,
    waiters: Annotated[Waiters, Depends(_waiters)],
    rows: Annotated[
        int, Query(ge=1, le=MOST_ROWS, description="Read so many rows of each split.")
    ] = DEFAULT_ROWS,
    shown: Annotated[
        int, Query(ge=0, le=MOST_SHOWN, description="Show so many examples in full.")
    ] = DEFAULT_SHOWN,
    wait: Annotated[
        float, Query(ge=0, le=_LONGEST_WAIT, description="Seconds to wait for the result.")
    ] = 10.0,
) -> Response:
    """A worker reads the first rows and tokenizes them as `prepare` of a job would; no job is made.
    An invalid spec is answered with 422 and every fault at once. A project has at most four
    unfinished previews, and its last twenty are kept, for an hour."""
    options = PreviewOptions(rows=rows, shown=shown)
    preview_id = await to_thread.run_sync(_begin, services, visitor.project, body, options)
    scope = Scope(visitor.project)
    preview = await to_thread.run_sync(_read, services, scope, preview_id)
    # Without a worker there is nothing to wait for.
    seconds = wait if preview.waiting is None else 0.0
    with waiters.take() as has_room:
        if has_room and await _ended(services.database, scope, preview_id, seconds):
            preview = await to_thread.run_sync(_read, services, scope, preview_id)
    status = HTTPStatus.ACCEPTED if preview.state in UNFINISHED else HTTPStatus.OK
    content = preview.model_dump_json(by_alias=True)
    headers = {"Location": f"/v1/previews/{preview_id}"}
    return Response(content, status, headers, media_type="application/json")


@router.get(
    "/v1/previews/{preview_id}",
    response_model=Preview,
    summary="One preview",
    responses=problems(401, 404, 422, 503),
)
def get_preview(
    visitor: JobsRead, preview_id: Annotated[str, Depends(_preview_id)], services: ServicesDep
) -> Preview:
    """Its result, once it has ended."""
    return _read(services, visitor.scope, preview_id)


def _begin(services: Services, project: str, body: Any, options: PreviewOptions) -> str:
    """Raises InvalidSpecError, TooManyPreviewsError, ProjectArchivedError."""
    spec = _valid(services, project, body)
    with services.database.write(audited=False) as session:
        preview_id = previews.insert(session, project, spec, options)
        fleet = Fleet.read(session.connection(), services.settings.alive_seconds)
        (message,) = previews.messages(session, [preview_id], fleet)
    services.dispatcher.enqueue_soon(message.job_id, message.queue, message.priority)
    return preview_id


def _valid(services: Services, project: str, body: Any) -> JobSpec:
    findings = submission.examine(body, services, Scope(project))
    if findings.faults or findings.spec is None:
        raise InvalidSpecError(findings.faults)
    return findings.spec


async def _ended(database: Database, scope: Scope, preview_id: str, seconds: float) -> bool:
    """Whether the preview ends within so long. No thread is kept meanwhile."""
    until, pause = time.monotonic() + seconds, _FIRST_PAUSE
    while (left := until - time.monotonic()) > 0:
        await sleep(min(pause, left))
        if not await to_thread.run_sync(_is_unfinished, database, scope, preview_id):
            return True
        pause = min(pause * _GROWTH, _LONGEST_PAUSE)
    return False


def _is_unfinished(database: Database, scope: Scope, preview_id: str) -> bool:
    with database.read() as session:
        return previews.is_unfinished(session, scope, preview_id)


def _read(services: Services, scope: Scope, preview_id: str) -> Preview:
    """Raises PreviewNotFoundError."""
    with services.database.read() as session:
        row = previews.get(session, scope, preview_id)
        waiting = None
        if row.state == PreviewState.QUEUED:
            fleet = Fleet.read(session.connection(), services.settings.alive_seconds)
            waiting = _why_waiting(fleet)
    return Preview.of(row, waiting)


def _why_waiting(fleet: Fleet) -> str | None:
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
