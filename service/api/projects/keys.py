"""The keys of a project. Those of operators are made on the service's machine."""

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Path
from sqlalchemy.orm import Session

from service.api.http.dependencies import DatabaseDep
from service.api.http.principal import KeysAdmin, Principal, permissions_of
from service.api.openapi.document import problems
from service.api.problems.errors import InvalidRequestError
from service.api.projects.routes import ProjectId, owner
from service.api.schemas.owners import ApiKey, ApiKeyList, ApiKeyMade, NewKey, Rotation
from service.api.schemas.problems import Fault
from service.contract.roles import Permission, Role
from service.errors import ForbiddenError, KeyNotFoundError, ProjectArchivedError
from service.store.database import clock
from service.store.projects import audit, keys, projects
from service.store.projects.keys import Grant
from service.store.scope import Scope
from service.store.tables.projects import ApiKeyRow

router = APIRouter(prefix="/v1/projects/{project}/keys", tags=["projects"])

KeyId = Annotated[str, Path(max_length=40, description="Its id.", examples=["key-0199a0b1c2d3"])]


@router.get("", summary="List keys", responses=problems(401, 404, 422, 503))
def list_keys(principal: KeysAdmin, project: ProjectId, database: DatabaseDep) -> ApiKeyList:
    """Every key that was ever made, the oldest first, without the keys themselves."""
    with database.read() as session:
        rows = keys.list_all(session, Scope(owner(session, principal, project).id))
        return ApiKeyList(data=[ApiKey.from_row(row) for row in rows])


@router.post(
    "", status_code=201, summary="Make a key", responses=problems(400, 401, 404, 409, 413, 422, 503)
)
def create_key(
    principal: KeysAdmin, project: ProjectId, new: NewKey, database: DatabaseDep
) -> ApiKeyMade:
    """The key is shown this once. It can do no more than the key that makes it, and expires no
    later."""
    with database.write() as session:
        row = owner(session, principal, project)
        if row.archived_at is not None:
            raise ProjectArchivedError(f"The project {row.name} is archived and takes no keys.")
        grant = _grant(session, row.id, new)
        _require_no_more(principal, grant)
        made, key = keys.create(session, new.name, grant)
        audit.about(f"{project}/{made.id}")
        return ApiKeyMade.from_row(made, key=key)


@router.delete("/{key_id}", summary="Revoke a key", responses=problems(401, 404, 422, 503))
def revoke_key(
    principal: KeysAdmin, project: ProjectId, key_id: KeyId, database: DatabaseDep
) -> ApiKey:
    """It is refused from now on. A key that was revoked before stays as it is."""
    with database.write() as session:
        row = _key(session, principal, project, key_id)
        keys.revoke(session, row.id, Scope(row.project_id))
        session.refresh(row)
        return ApiKey.from_row(row)


@router.post(
    "/{key_id}/rotate",
    status_code=201,
    summary="Rotate a key",
    responses=problems(400, 401, 404, 413, 422, 503),
)
def rotate_key(
    principal: KeysAdmin,
    project: ProjectId,
    key_id: KeyId,
    database: DatabaseDep,
    rotation: Rotation = Rotation(),  # noqa: B008
) -> ApiKeyMade:
    """Makes a key with the same rights, and lets the old one work for `grace_seconds` more."""
    with database.write() as session:
        row = _key(session, principal, project, key_id)
        if not keys.active(session, row.id, Scope(row.project_id)):
            raise _not_found(key_id)
        _require_no_more(principal, keys.grant_of(row))
        made, key = keys.rotate(session, row, rotation.grace_seconds)
        return ApiKeyMade.from_row(made, key=key)


def _key(session: Session, principal: Principal, project: str, key_id: str) -> ApiKeyRow:
    rows = keys.list_all(session, Scope(owner(session, principal, project).id))
    found = [row for row in rows if row.id == key_id]
    if not found:
        raise _not_found(key_id)
    return found[0]


def _not_found(key_id: str) -> KeyNotFoundError:
    return KeyNotFoundError(f"The project has no such key {key_id[:100]!r}.")


def _grant(session: Session, project_id: str, new: NewKey) -> Grant:
    """Raises InvalidRequestError for scopes that the role does not have."""
    role = Role(new.role)
    member_id = None
    if new.member is not None:
        member = projects.member(session, project_id, new.member)
        member_id = member.id
        role = role if Role(member.role).includes(role) else Role(member.role)
    beyond = sorted(set(new.scopes or ()) - permissions_of(role))
    if beyond:
        fault = Fault(
            path="body.scopes",
            code="invalid_value",
            message=f"the role `{role}` does not have {', '.join(f'`{name}`' for name in beyond)}",
            allowed=sorted(permissions_of(role)),
        )
        raise InvalidRequestError([fault])
    expires_at = None
    if new.expires_in_seconds is not None:
        expires_at = clock(session) + timedelta(seconds=new.expires_in_seconds)
    return Grant(project_id, role, member_id, new.scopes, expires_at)


def _require_no_more(principal: Principal, grant: Grant) -> None:
    """Raises ForbiddenError if the grant exceeds what the principal has."""
    given = permissions_of(grant.role)
    if grant.scopes is not None:
        given &= {Permission(name) for name in grant.scopes}
    beyond = sorted(given - principal.permissions)
    if beyond or not principal.role.includes(grant.role):
        missing = ", ".join(f"`{name}`" for name in beyond) or f"the role `{grant.role}`"
        raise ForbiddenError(
            f"A key cannot give more than it has: this one lacks {missing}. Ask an admin of the "
            "project whose key has it.",
            role=str(grant.role),
        )
    ends = principal.expires_at
    if ends is not None and (grant.expires_at is None or grant.expires_at > ends):
        raise ForbiddenError(
            f"A key cannot give more than it has: this one expires at {ends:%Y-%m-%dT%H:%M:%SZ}. "
            "Give `expires_in_seconds`, so that the new key expires no later."
        )
