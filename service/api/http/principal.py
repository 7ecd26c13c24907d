"""Who sends a request, and what it may see and do; every route declares what it needs."""

from datetime import datetime
from functools import cache
from typing import Annotated, Any, Final, NamedTuple

from fastapi import Depends, Request
from fastapi.dependencies.models import Dependant
from sqlalchemy import Connection

from service.api.problems.errors import UnauthorizedError
from service.contract.roles import LOWEST_ROLE, Permission, Role
from service.errors import ForbiddenError
from service.store.projects import keys, projects
from service.store.scope import EVERYTHING, Scope
from service.store.tables.projects import DEFAULT_PROJECT

PROJECT_HEADER: Final = "FineTune-Project"
NO_KEY: Final = (
    "Send a valid key as `Authorization: Bearer <key>`. The operator of the service makes one with "
    "`finetune keys create <name>`."
)


class Principal(NamedTuple):
    key_id: str | None
    """None: the operator has opened the service, so there are no keys."""
    key_name: str | None
    role: Role
    permissions: frozenset[Permission]
    scope: Scope
    """What it sees: its project, or everything for an operator who has named none."""
    project: str
    """The id of the project that owns what it makes."""
    member_id: str | None = None
    expires_at: datetime | None = None
    max_requests_per_second: float | None = None
    """Of the key's project."""

    @property
    def is_operator(self) -> bool:
        return self.role is Role.OPERATOR

    @property
    def own(self) -> Scope:
        """What a new job may use: a job never has anything of another project."""
        return Scope(self.project)


@cache
def permissions_of(role: Role) -> frozenset[Permission]:
    return frozenset(each for each, lowest in LOWEST_ROLE.items() if role.includes(lowest))


ANYONE: Final = Principal(
    None, None, Role.OPERATOR, permissions_of(Role.OPERATOR), EVERYTHING, DEFAULT_PROJECT
)
"""Every principal of a service that the operator has opened."""


def identify(connection: Connection, key: str, project: str | None = None) -> Principal:
    """Who sends this key and names this project. Raises UnauthorizedError, or ProjectNotFoundError
    for a project that the key does not belong to."""
    principal = _of_working(keys.who(connection, key))
    return principal if project is None else in_project(connection, principal, project)


def identify_session(connection: Connection, token: str) -> Principal:
    """Whose session this is. Raises UnauthorizedError."""
    return _of_working(keys.who_in_session(connection, token))


def _of_working(holder: keys.Holder | None) -> Principal:
    if holder is None:
        raise UnauthorizedError(NO_KEY)
    if holder.is_expired:
        raise UnauthorizedError(
            f"This key expired on {holder.expires_at:%Y-%m-%d %H:%M} UTC. Whoever made it can make "
            "another one, or use `finetune keys rotate` before the next one expires."
        )
    return of_holder(holder)


def of_holder(holder: keys.Holder) -> Principal:
    permissions = permissions_of(holder.role)
    if holder.scopes is not None:
        permissions &= {each for each in Permission if each in holder.scopes}
    return Principal(
        holder.key_id,
        holder.key_name,
        holder.role,
        permissions,
        Scope(holder.project),
        holder.project or DEFAULT_PROJECT,
        holder.member_id,
        holder.expires_at,
        holder.max_requests_per_second,
    )


def in_project(connection: Connection, principal: Principal, id_or_name: str) -> Principal:
    """The principal as one of this project alone. Raises ProjectNotFoundError."""
    project = projects.find(connection, principal.scope, id_or_name)
    return principal._replace(scope=Scope(project), project=project)


class Needs:
    """A dependency: the principal, if it has the permission. None: any valid key will do."""

    def __init__(self, permission: Permission | None) -> None:
        self.permission = permission

    # A coroutine, although it awaits nothing: FastAPI runs plain functions in another thread.
    async def __call__(self, request: Request) -> Principal:
        principal: Principal = request.state.principal
        if self.permission is not None and self.permission not in principal.permissions:
            raise _forbidden(principal, self.permission)
        return principal


def _forbidden(principal: Principal, needed: Permission) -> ForbiddenError:
    role = LOWEST_ROLE[needed]
    if principal.role.includes(role):
        lack = f"the scope `{needed}`, which this key does not have"
    else:
        lack = f"the role `{role}`; this key has the role `{principal.role}`"
    giver = "the operator" if role is Role.OPERATOR else "an admin of the project"
    return ForbiddenError(
        f"This needs {lack}. Ask {giver} for such a key.", needs=str(needed), role=str(role)
    )


Anyone = Annotated[Principal, Depends(Needs(None))]
JobsRead = Annotated[Principal, Depends(Needs(Permission.JOBS_READ))]
JobsWrite = Annotated[Principal, Depends(Needs(Permission.JOBS_WRITE))]
FilesRead = Annotated[Principal, Depends(Needs(Permission.FILES_READ))]
FilesWrite = Annotated[Principal, Depends(Needs(Permission.FILES_WRITE))]
SecretsRead = Annotated[Principal, Depends(Needs(Permission.SECRETS_READ))]
SecretsWrite = Annotated[Principal, Depends(Needs(Permission.SECRETS_WRITE))]
WebhooksRead = Annotated[Principal, Depends(Needs(Permission.WEBHOOKS_READ))]
WebhooksWrite = Annotated[Principal, Depends(Needs(Permission.WEBHOOKS_WRITE))]
AuditRead = Annotated[Principal, Depends(Needs(Permission.AUDIT_READ))]
KeysAdmin = Annotated[Principal, Depends(Needs(Permission.KEYS_ADMIN))]
ProjectsAdmin = Annotated[Principal, Depends(Needs(Permission.PROJECTS_ADMIN))]
# Of routes that have no use for the principal itself.
NEEDS_KEY: Final = Depends(Needs(None))
NEEDS_JOBS_READ: Final = Depends(Needs(Permission.JOBS_READ))
NEEDS_JOBS_WRITE: Final = Depends(Needs(Permission.JOBS_WRITE))
NEEDS_PROJECTS_ADMIN: Final = Depends(Needs(Permission.PROJECTS_ADMIN))
NEEDS_METRICS: Final = Depends(Needs(Permission.METRICS_READ))


def needs_of(dependant: Dependant) -> list[Any]:
    """What a route declares to need, itself or in what it depends on: one for each route that is
    not open."""
    found = dict.fromkeys(
        need
        for each in dependant.dependencies
        for need in ([each.call.permission] if isinstance(each.call, Needs) else needs_of(each))
    )
    return list(found)
