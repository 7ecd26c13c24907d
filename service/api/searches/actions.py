"""What can be done to a search: pause, resume, cancel, extend, delete."""

from typing import Any, Final

from fastapi import APIRouter

from service.api.http.dependencies import DatabaseDep, SearchId, SettingsDep
from service.api.http.principal import JobsWrite
from service.api.openapi.document import problems
from service.api.schemas.searches import Extension, SearchDeleted, SearchStateOf
from service.jobs.disk_space import with_reserve
from service.searches import commands

router = APIRouter(prefix="/v1/searches/{search_id}", tags=["searches"])

_PROBLEMS: Final[dict[int | str, dict[str, Any]]] = problems(401, 404, 409, 422, 503)


@router.post("/cancel", summary="Cancel a search", responses=_PROBLEMS)
def cancel_search(
    principal: JobsWrite, search_id: SearchId, database: DatabaseDep, settings: SettingsDep
) -> SearchStateOf:
    """A search without trials is cancelled at once; another one is `cancelling` until its trials
    have stopped.

    409 when it has ended. Repeating the request while it is `cancelling` changes nothing.
    """
    state = with_reserve(settings, lambda: commands.cancel(database, principal.scope, search_id))
    return SearchStateOf(id=search_id, state=state)


@router.post("/pause", summary="Pause a search", responses=_PROBLEMS)
def pause_search(principal: JobsWrite, search_id: SearchId, database: DatabaseDep) -> SearchStateOf:
    """It makes no more trials, and is `pausing` until those that run have paused at checkpoints.

    409 when it has ended or is being cancelled. Repeating the request changes nothing.
    """
    return SearchStateOf(id=search_id, state=commands.pause(database, principal.scope, search_id))


@router.post("/resume", summary="Resume a paused search", responses=_PROBLEMS)
def resume_search(
    principal: JobsWrite, search_id: SearchId, database: DatabaseDep
) -> SearchStateOf:
    """Its trials continue from their checkpoints. While it is `pausing`, the pause is withdrawn.

    409 when it has ended or is being cancelled; a search that is not paused does not change.
    """
    return SearchStateOf(id=search_id, state=commands.resume(database, principal.scope, search_id))


@router.post(
    "/extend",
    summary="Give a search more trials",
    responses=problems(400, 401, 404, 409, 413, 422, 429, 503),
)
def extend_search(
    principal: JobsWrite, search_id: SearchId, extension: Extension, database: DatabaseDep
) -> SearchStateOf:
    """Raises `max_trials`; a search that has ended continues.

    409 for fewer trials than it has, and while it is being cancelled. Asking again for the same
    number changes nothing.
    """
    state = commands.extend(database, principal.scope, search_id, extension.max_trials)
    return SearchStateOf(id=search_id, state=state)


@router.delete("", summary="Delete an ended search", responses=_PROBLEMS)
def delete_search(
    principal: JobsWrite, search_id: SearchId, database: DatabaseDep, settings: SettingsDep
) -> SearchDeleted:
    """Deletes it and the jobs of its trials with their files; the files of their runs in
    MLflow follow. What is on the Hub stays.

    409 when it has not ended, when one of its jobs runs again, and when a job that has not ended
    begins with the model of one; 404 when it does not exist, or was deleted before.
    """
    with_reserve(settings, lambda: commands.delete(database, settings, principal.scope, search_id))
    return SearchDeleted(id=search_id)
