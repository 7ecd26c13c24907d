"""Who sends a request, and what it may see and do; every route declares what it needs."""

from datetime import datetime
from functools import cache
from typing import Annotated, Any, Final, NamedTuple

from fastapi import Depends, Request
from fastapi.dependencies.models import Dependant
from sqlalchemy import Connection

from service.api.errors import UnauthorizedError
from service.contract.roles import LOWEST_ROLE, Permission, Role
from service.errors import ForbiddenError
from service.store import keys, projects
from service.store.owner_models import DEFAULT_PROJECT
from service.store.scope import EVERYTHING, Scope

PROJECT_HEADER: Final = "FineTune-Project"
NO_KEY: Final = (
    "Send a valid key as `Authorization: Bearer <key>`. The operator of the service makes one with "
    "`finetune keys create <name>`."
)


class Visitor(NamedTuple):
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


ANYONE: Final = Visitor(
    None, None, Role.OPERATOR, permissions_of(Role.OPERATOR), EVERYTHING, DEFAULT_PROJECT
)
"""Every visitor of a service that the operator has opened."""


def identify(connection: Connection, key: str, project: str | None = None) -> Visitor:
    """Who sends this key and names this project. Raises UnauthorizedError, or ProjectNotFoundError
    for a project that the key does not belong to."""
    visitor = _of_working(keys.who(connection, key))
    return visitor if project is None else in_project(connection, visitor, project)


def identify_session(connection: Connection, token: str) -> Visitor:
    """Whose session this is. Raises UnauthorizedError."""
    return _of_working(keys.who_in_session(connection, token))


def _of_working(holder: keys.Holder | None) -> Visitor:
    if holder is None:
        raise UnauthorizedError(NO_KEY)
    if holder.is_expired:
        raise UnauthorizedError(
            f"This key expired on {holder.expires_at:%Y-%m-%d %H:%M} UTC. Whoever made it can make "
            "another one, or use `finetune keys rotate` before the next one expires."
        )
    return of_holder(holder)


def of_holder(holder: keys.Holder) -> Visitor:
    permissions = permissions_of(holder.role)
    if holder.scopes is not None:
        permissions &= {each for each in Permission if each in holder.scopes}
    return Visitor(
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


def in_project(connection: Connection, visitor: Visitor, id_or_name: str) -> Visitor:
    """The visitor as one of this project alone. Raises ProjectNotFoundError."""
    project = projects.find(connection, visitor.scope, id_or_name)
    return visitor._replace(scope=Scope(project), project=project)


class Needs:
    """A dependency: the visitor, if it has the permission. None: any valid key will do."""

    def __init__(self, permission: Permission | None) -> None:
        self.permission = permission

    # A coroutine, although it awaits nothing: FastAPI runs plain functions in another thread.
    async def __call__(self, request: Request) -> Visitor:
        visitor: Visitor = request.state.visitor
        if self.permission is not None and self.permission not in visitor.permissions:
            raise _forbidden(visitor, self.permission)
        return visitor


def _forbidden(visitor: Visitor, needed: Permission) -> ForbiddenError:
    role = LOWEST_ROLE[needed]
    if visitor.role.includes(role):
        lack = f"the scope `{needed}`, which this key does not have"
    else:
        lack = f"the role `{role}`; this key has the role `{visitor.role}`"
    giver = "the operator" if role is Role.OPERATOR else "an admin of the project"
    return ForbiddenError(
        f"This needs {lack}. Ask {giver} for such a key.", needs=str(needed), role=str(role)
    )


Anyone = Annotated[Visitor, Depends(Needs(None))]
JobsRead = Annotated[Visitor, Depends(Needs(Permission.JOBS_READ))]
JobsWrite = Annotated[Visitor, Depends(Needs(Permission.JOBS_WRITE))]
FilesRead = Annotated[Visitor, Depends(Needs(Permission.FILES_READ))]
FilesWrite = Annotated[Visitor, Depends(Needs(Permission.FILES_WRITE))]
SecretsRead = Annotated[Visitor, Depends(Needs(Permission.SECRETS_READ))]
SecretsWrite = Annotated[Visitor, Depends(Needs(Permission.SECRETS_WRITE))]
WebhooksRead = Annotated[Visitor, Depends(Needs(Permission.WEBHOOKS_READ))]
WebhooksWrite = Annotated[Visitor, Depends(Needs(Permission.WEBHOOKS_WRITE))]
AuditRead = Annotated[Visitor, Depends(Needs(Permission.AUDIT_READ))]
KeysAdmin = Annotated[Visitor, Depends(Needs(Permission.KEYS_ADMIN))]
ProjectsAdmin = Annotated[Visitor, Depends(Needs(Permission.PROJECTS_ADMIN))]
# Of routes that have no use for the visitor itself.
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
