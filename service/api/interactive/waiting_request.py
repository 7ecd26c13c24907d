"""Previews and predictions: a worker makes them, and a request may wait for one a while."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Generic, TypeVar

from anyio import sleep, to_thread
from fastapi import Request, Response
from sqlalchemy.orm import Session

from service.api.http.dependencies import Services
from service.api.http.limits import Waiters
from service.api.problems.errors import ClientClosedError
from service.api.schemas.predictions import Prediction
from service.api.schemas.previews import Preview
from service.settings import Settings
from service.store.interactive.requests import QUEUED, BriefRequests, Row
from service.store.scope import Scope

Answer = TypeVar("Answer", Preview, Prediction)

LONGEST_WAIT: Final = 60.0
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 0.5
_GROWTH: Final = 1.15


def responses(model: type[Answer]) -> dict[int | str, dict[str, Any]]:
    what = model.__name__.lower()
    location = {"Location": {"required": True, "schema": {"type": "string"}}}
    return {
        200: {"description": f"The {what} has ended.", "headers": location},
        202: {
            "description": "It has not ended yet: ask for it at `Location`.",
            "model": model,
            "headers": location,
        },
    }


@dataclass(frozen=True)
class BriefAnswers(Generic[Row, Answer]):
    requests: BriefRequests[Row]
    answer_from: Callable[[Row, str | None], Answer]
    why_waiting: Callable[[Session, Settings], str | None]
    """Why no worker can begin now, and what to do; None: one can."""

    def read(self, services: Services, scope: Scope, row_id: str) -> Answer:
        """Raises PreviewNotFoundError, PredictionNotFoundError."""
        with services.database.read() as session:
            row = self.requests.get(session, scope, row_id)
            # In one transaction: the worker that is about to begin counts as busy afterwards.
            is_queued = row.state == QUEUED
            waiting = self.why_waiting(session, services.settings) if is_queued else None
        return self.answer_from(row, waiting)

    async def wait(
        self,
        services: Services,
        scope: Scope,
        row_id: str,
        request: Request,
        waiters: Waiters,
        seconds: float,
    ) -> Response:
        """Answer as soon as it has ended, or after `seconds`. No thread is blocked meanwhile.
        Raises ClientClosedError when the client has disconnected."""
        found = await to_thread.run_sync(self.read, services, scope, row_id)
        # Without a worker there is nothing to wait for.
        until = time.monotonic() + (seconds if found.waiting is None else 0.0)
        with waiters.take() as has_room:
            if has_room and await self._ended(services, scope, row_id, request, until):
                found = await to_thread.run_sync(self.read, services, scope, row_id)
        status = HTTPStatus.ACCEPTED if found.ended_at is None else HTTPStatus.OK
        headers = {"Location": f"/v1/{self.requests.table.__tablename__}/{row_id}"}
        content = found.model_dump_json(by_alias=True)
        return Response(content, status, headers, media_type="application/json")

    async def _ended(
        self, services: Services, scope: Scope, row_id: str, request: Request, until: float
    ) -> bool:
        pause = _FIRST_PAUSE
        while (left := until - time.monotonic()) > 0:
            await sleep(min(pause, left))
            if not await to_thread.run_sync(self._is_unfinished, services, scope, row_id):
                return True
            if await request.is_disconnected():
                raise ClientClosedError("The client disconnected before the answer was ready.")
            pause = min(pause * _GROWTH, _LONGEST_PAUSE)
        return False

    def _is_unfinished(self, services: Services, scope: Scope, row_id: str) -> bool:
        with services.database.read() as session:
            return self.requests.is_unfinished(session, scope, row_id)
