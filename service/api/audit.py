"""GET /v1/audit: who did what."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query

from service.api.dependencies import DatabaseDep
from service.api.openapi import problems
from service.api.schemas.teams import AuditEntry, AuditList
from service.api.visitor import AuditRead
from service.contract import patterns
from service.store import audit, job_list

router = APIRouter(prefix="/v1/audit", tags=["teams"])

Text = Annotated[str | None, Query(max_length=200, pattern=patterns.NO_NUL)]


@router.get("", summary="The audit log", responses=problems(401, 403, 422, 503))
def list_audit(
    visitor: AuditRead,
    database: DatabaseDep,
    after: Annotated[
        str | None,
        Query(pattern=patterns.AUDIT_ID, description="The last id of the previous page."),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    action: Text = None,
    target: Text = None,
    key_id: Text = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> AuditList:
    """Every request that changed something, and those that were refused for lack of a key or of a
    right; the newest first. An operator sees all, an admin what was done in the own project. Times
    are RFC 3339; without an offset they are UTC.
    """
    wanted = audit.Wanted(action, target, key_id, job_list.as_utc(since), job_list.as_utc(until))
    with database.read() as session:
        rows, has_more = audit.page(session, visitor.scope, wanted, after=after, limit=limit)
    data = [AuditEntry.of(row) for row in rows]
    return AuditList.of(data, has_more=has_more)
