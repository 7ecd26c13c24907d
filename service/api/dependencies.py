"""The dependencies of routes, as `Annotated` aliases; nothing else reads the app's state."""

import re
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Path, Request

from service.api import body
from service.contract import patterns
from service.errors import JobNotFoundError, SearchNotFoundError
from service.jobs.dispatch import Dispatcher
from service.jobs.submissions import Submissions
from service.settings import Settings
from service.store.database import Database

_JOB_ID = re.compile(r"job-[0-9a-f]{1,36}")


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


async def _job_id(
    job_id: Annotated[
        str,
        Path(description="Id of the job.", examples=["job-0199a0b1c2d37e4f85a6b7c8d9e0f1a2"]),
    ],
) -> str:
    # What cannot be an id must not reach SQL: Postgres refuses a NUL in any text.
    if not _JOB_ID.fullmatch(job_id):
        raise JobNotFoundError(job_id)
    return job_id


async def _search_id(
    search_id: Annotated[
        str,
        Path(description="Id of the search.", examples=["search-0199a0b1c2d37e4f85a6b7c8d9e0f1a2"]),
    ],
) -> str:
    if not re.fullmatch(patterns.SEARCH_ID, search_id):
        raise SearchNotFoundError(search_id)
    return search_id


ServicesDep = Annotated[Services, Depends(_services)]
SettingsDep = Annotated[Settings, Depends(_settings)]
DatabaseDep = Annotated[Database, Depends(_database)]
DispatcherDep = Annotated[Dispatcher, Depends(_dispatcher)]
JobId = Annotated[str, Depends(_job_id)]
SearchId = Annotated[str, Depends(_search_id)]
ParsedBody = Annotated[Any, Depends(body.read)]
