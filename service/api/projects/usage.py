"""GET /v1/usage: what projects have used, for charging."""

from dataclasses import replace
from datetime import date, timedelta
from typing import Annotated

from fastapi import APIRouter, Query

from service.api.http.dependencies import DatabaseDep
from service.api.http.principal import JobsRead, in_project
from service.api.openapi.document import problems
from service.api.schemas.teams import UsageDay, UsageList
from service.store.database import clock
from service.store.projects import quotas, usage
from service.store.projects.usage import Day, Used

router = APIRouter(prefix="/v1/usage", tags=["teams"])

_MONTH = timedelta(days=30)


@router.get("", summary="Usage by project and day", responses=problems(401, 403, 404, 422, 503))
def get_usage(
    principal: JobsRead,
    database: DatabaseDep,
    project: Annotated[
        str | None, Query(max_length=64, description="Id or name; default: all that the key sees.")
    ] = None,
    from_: Annotated[
        date | None, Query(alias="from", description="The first day (UTC); default: 30 days ago.")
    ] = None,
    to: Annotated[date | None, Query(description="The last day (UTC); default: today.")] = None,
) -> UsageList:
    """GPU seconds, worker seconds, ended jobs and stored bytes of each project and day (UTC), the
    oldest first. What runs now is included up to this moment; jobs that were deleted stay counted.
    """
    if project is not None:
        with database.connect() as connection:
            principal = in_project(connection, principal, project)
    with database.read() as session:
        today = usage.day_of(clock(session))
        last = str(to or today)
        # Python has no day before `date.min`.
        month = min(_MONTH, date.fromisoformat(last) - date.min)
        first = str(from_ or date.fromisoformat(last) - month)
        found = usage.days(session, principal.scope, first, last)
        if first <= today <= last:
            found = _with_stored_now(
                found, quotas.stored_by_project(session, principal.scope), today
            )
    return UsageList(data=[UsageDay.from_day(day) for day in found])


def _with_stored_now(found: list[Day], stored: dict[str, int], today: str) -> list[Day]:
    """The sweep that notes what is stored comes every few minutes."""
    days = {(day.day, day.project): day for day in found}
    for project, size in stored.items():
        day = days.get((today, project)) or Day(project, today, Used(), 0)
        days[today, project] = replace(day, bytes_stored=max(day.bytes_stored, size))
    return [days[key] for key in sorted(days)]
