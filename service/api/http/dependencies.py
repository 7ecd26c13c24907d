"""The dependencies of routes, as `Annotated` aliases; nothing else reads the app's state."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Path, Request

from service.api.http import body
from service.contract.fields import patterns
from service.errors import JobNotFoundError, SearchNotFoundError, UnknownIdError
from service.jobs.dispatch import Dispatcher
from service.jobs.submissions import Submissions
from service.settings import Settings
from service.store.database import Database


@dataclass(frozen=True)
class Services:
    """What the app holds while it runs."""

    settings: Settings
    database: Database
    dispatcher: Dispatcher
    submissions: Submissions


# Coroutines, although they await nothing: FastAPI runs plain functions in another thread.
async def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


async def _settings(request: Request) -> Settings:
    return (await _services(request)).settings


async def _database(request: Request) -> Database:
    return (await _services(request)).database


async def _dispatcher(request: Request) -> Dispatcher:
    return (await _services(request)).dispatcher


def path_id(
    noun: str, pattern: str, not_found: type[UnknownIdError]
) -> Callable[[str], Awaitable[str]]:
    """A dependency: the path's `{noun}_id`. Raises `not_found` if it does not have the form of an
    id."""

    async def checked(
        given: Annotated[
            str,
            Path(
                alias=f"{noun}_id",
                description=f"Id of the {noun}.",
                examples=[
                    f"{pattern.lstrip('^').partition('-')[0]}-0199a0b1c2d37e4f85a6b7c8d9e0f1a2"
                ],
            ),
        ],
    ) -> str:
        # What cannot be an id must not reach SQL: Postgres refuses a NUL in any text.
        if not re.fullmatch(pattern, given):
            raise not_found(given)
        return given

    return checked


ServicesDep = Annotated[Services, Depends(_services)]
SettingsDep = Annotated[Settings, Depends(_settings)]
DatabaseDep = Annotated[Database, Depends(_database)]
DispatcherDep = Annotated[Dispatcher, Depends(_dispatcher)]
JobId = Annotated[str, Depends(path_id("job", patterns.JOB_ID, JobNotFoundError))]
SearchId = Annotated[str, Depends(path_id("search", patterns.SEARCH_ID, SearchNotFoundError))]
ParsedBody = Annotated[Any, Depends(body.read)]
