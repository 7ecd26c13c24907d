"""GET /v1/audit: who did what."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query

from service.api.http.dependencies import DatabaseDep
from service.api.http.principal import AuditRead
from service.api.openapi.document import problems
from service.api.schemas.teams import AuditEntry, AuditList
from service.contract.fields import patterns
from service.store.jobs import listing
from service.store.projects import audit

router = APIRouter(prefix="/v1/audit", tags=["teams"])

Text = Annotated[str | None, Query(max_length=200, pattern=patterns.NO_NUL)]


@router.get("", summary="The audit log", responses=problems(401, 403, 422, 503))
def list_audit(
    principal: AuditRead,
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
    wanted = audit.Wanted(action, target, key_id, listing.as_utc(since), listing.as_utc(until))
    with database.read() as session:
        rows, has_more = audit.page(session, principal.scope, wanted, after=after, limit=limit)
    data = [AuditEntry.from_row(row) for row in rows]
    return AuditList.from_items(data, has_more=has_more)
