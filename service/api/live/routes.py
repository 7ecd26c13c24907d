"""The live streams of a job: its events and its log."""

from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.responses import StreamingResponse

from service.api.http.dependencies import JobId
from service.api.http.limits import LIVE_STREAM, StreamSlots
from service.api.http.principal import JobsRead
from service.api.jobs.records import After
from service.api.live import streams
from service.api.live.feed import Feed, Watcher
from service.api.openapi.document import problems
from service.errors import JobNotFoundError
from service.store.jobs import watching
from service.store.jobs.watching import Head

router = APIRouter(
    prefix="/v1/jobs/{job_id}", tags=["jobs"], responses=problems(401, 404, 422, 429, 503)
)

_MESSAGE: Final = {
    "type": "object",
    "properties": {
        "data": {"type": "string"},
        "event": {"type": "string"},
        "id": {"type": "string"},
        "retry": {"type": "integer", "minimum": 0},
    },
}
_MESSAGES: Final[dict[int | str, dict[str, Any]]] = {
    200: {"content": {"text/event-stream": {"itemSchema": _MESSAGE}}}
}
_OF_HEADER: Final = "The `id` of the last message that arrived; counts before the parameter."
LastEvent = Annotated[
    int | None, Header(alias="Last-Event-ID", ge=0, le=2**31 - 1, description=_OF_HEADER)
]
LastByte = Annotated[
    int | None, Header(alias="Last-Event-ID", ge=0, le=2**62, description=_OF_HEADER)
]


class LiveResponse(StreamingResponse):
    """Server-sent events as they are made. FastAPI's own class has two tasks and two queues for
    each stream, through which every message would pass for each of 2,000 watchers."""

    media_type = "text/event-stream"

    # FastAPI reads the status from the signature, for the OpenAPI document.
    def __init__(self, messages: AsyncIterator[bytes], status_code: int = 200) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(messages, status_code, headers)


async def _watch(request: Request, principal: JobsRead, job_id: JobId) -> AsyncIterator[Watcher]:
    """Raises JobNotFoundError, TooManyStreamsError: before the answer begins."""
    feed: Feed = request.app.state.feed
    slots: StreamSlots = request.app.state.stream_slots

    def read() -> Head:
        with feed.database.read() as session:
            head = watching.heads(session, principal.scope, [job_id]).get(job_id)
        if head is None:
            raise JobNotFoundError(job_id)
        return head

    project = None if principal.key_id is None else principal.scope.project
    with slots.take(principal.key_id, project):
        head = feed.known_head(job_id, principal.scope)
        if head is None:
            head = await feed.in_thread(read)
        watcher = feed.join(principal, job_id, head)
        # Known to the limit on requests, and to the connection when the server stops.
        setattr(request.state, LIVE_STREAM, feed)
        try:
            yield watcher
        finally:
            feed.leave(watcher)


Watch = Annotated[Watcher, Depends(_watch)]


@router.get(
    "/events/stream",
    summary="The job's history, live",
    response_class=LiveResponse,
    responses=_MESSAGES,
)
async def stream_events(
    watcher: Watch, after: After = 0, last_event_id: LastEvent = None
) -> LiveResponse:
    """Server-sent events: each event as `GET …/events` has it, with its `seq` as `id`; without an
    id, `progress` with the state, the stage, the phase and the newest numbers whenever they change.
    The last message is `end`, with the state; `deleted` if the job is. A job that is retried later
    is watched by a new stream, which begins after the last `id`."""
    return LiveResponse(streams.events(watcher, after if last_event_id is None else last_event_id))


@router.get(
    "/logs/stream",
    summary="The job's log, live",
    response_class=LiveResponse,
    responses=_MESSAGES,
)
async def stream_logs(
    watcher: Watch,
    offset: Annotated[int, Query(ge=0, le=2**62, description="Byte to start at.")] = 0,
    last_event_id: LastByte = None,
) -> LiveResponse:
    """Server-sent events `log`: parts as `GET …/logs` has them, the `id` is `next_offset`. The last
    message is `end`, with the job's state."""
    return LiveResponse(streams.log(watcher, offset if last_event_id is None else last_event_id))
