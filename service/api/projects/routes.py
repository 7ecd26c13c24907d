"""Projects, their limits and their members."""

from typing import Annotated

from fastapi import APIRouter, Path
from sqlalchemy.orm import Session

from service.api.http.dependencies import DatabaseDep
from service.api.http.principal import (
    NEEDS_PROJECTS_ADMIN,
    Anyone,
    KeysAdmin,
    Principal,
    ProjectsAdmin,
    permissions_of,
)
from service.api.openapi.document import problems
from service.api.schemas.owners import (
    Me,
    Member,
    MemberChanges,
    MemberList,
    MemberRemoved,
    NewMember,
    NewProject,
    Project,
    ProjectChanges,
    ProjectList,
)
from service.contract.roles import Role
from service.errors import ForbiddenError
from service.store.projects import audit, projects
from service.store.tables.projects import ProjectRow

router = APIRouter(prefix="/v1", tags=["projects"])

ProjectId = Annotated[str, Path(max_length=64, description="Its name or id.", examples=["default"])]
MemberId = Annotated[str, Path(max_length=200, description="Their name or id.")]


def owner(session: Session, principal: Principal, id_or_name: str) -> ProjectRow:
    """The project that the path names. Raises ProjectNotFoundError."""
    row = projects.get(session, principal.scope, id_or_name)
    audit.inside(row.id)
    return row


@router.get("/me", summary="Who am I", responses=problems(401, 503))
def get_me(principal: Anyone) -> Me:
    """The key of the request: its project, its role and what it may do."""
    return Me(
        key_id=principal.key_id,
        key_name=principal.key_name,
        role=principal.role,
        project=principal.scope.project,
        makes_in=principal.project,
        member=principal.member_id,
        permissions=sorted(principal.permissions),
        expires_at=principal.expires_at,
    )


@router.get("/projects", summary="List projects", responses=problems(401, 422, 503))
def list_projects(principal: Anyone, database: DatabaseDep) -> ProjectList:
    """By name: all for an operator, else the key's own."""
    with database.read() as session:
        rows = projects.list_all(session, principal.scope)
        return ProjectList(data=[Project.from_row(row) for row in rows])


@router.post(
    "/projects",
    status_code=201,
    summary="Make a project",
    dependencies=[NEEDS_PROJECTS_ADMIN],
    responses=problems(400, 401, 409, 413, 422, 503),
)
def create_project(new: NewProject, database: DatabaseDep) -> Project:
    """For operators. Keys of the project are made with POST /v1/projects/{project}/keys."""
    limits = new.model_dump(exclude={"name"})
    with database.write() as session:
        row = projects.create(session, new.name, limits)
        audit.about(row.id)
        audit.inside(row.id)
        return Project.from_row(row)


@router.get("/projects/{project}", summary="One project", responses=problems(401, 404, 422, 503))
def get_project(principal: Anyone, project: ProjectId, database: DatabaseDep) -> Project:
    """Its limits, and whether it is archived."""
    with database.read() as session:
        return Project.from_row(owner(session, principal, project))


@router.patch(
    "/projects/{project}",
    summary="Change a project",
    responses=problems(400, 401, 404, 409, 413, 422, 503),
)
def change_project(
    principal: ProjectsAdmin, project: ProjectId, changes: ProjectChanges, database: DatabaseDep
) -> Project:
    """For operators: set its limits, rename it, or archive it. An archived project takes no new
    jobs and files; what it has stays. In MLflow a project keeps its first name."""
    given = changes.model_dump(exclude_unset=True)
    with database.write() as session:
        row = owner(session, principal, project)
        return Project.from_row(projects.change(session, row, given))


# ---- members ------------------------------------------------------------------------------------


@router.get(
    "/projects/{project}/members", summary="List members", responses=problems(401, 404, 422, 503)
)
def list_members(principal: KeysAdmin, project: ProjectId, database: DatabaseDep) -> MemberList:
    """By name."""
    with database.read() as session:
        row = owner(session, principal, project)
        return MemberList(data=[Member.from_row(one) for one in projects.members(session, row.id)])


@router.post(
    "/projects/{project}/members",
    status_code=201,
    summary="Add a member",
    responses=problems(400, 401, 404, 409, 413, 422, 503),
)
def add_member(
    principal: KeysAdmin, project: ProjectId, new: NewMember, database: DatabaseDep
) -> Member:
    """A named person with a role. Their keys are made with POST …/keys and `member`."""
    _require_can_give(principal, new.role)
    with database.write() as session:
        row = owner(session, principal, project)
        made = projects.add_member(session, row.id, new.name, new.role)
        audit.about(f"{project}/{made.id}")
        return Member.from_row(made)


def _require_can_give(principal: Principal, role: Role) -> None:
    if not principal.role.includes(role):
        raise ForbiddenError(
            f"This key has the role `{principal.role}` and cannot give the role `{role}`.",
            role=str(role),
        )


@router.patch(
    "/projects/{project}/members/{member}",
    summary="Change a member's role",
    responses=problems(400, 401, 404, 413, 422, 503),
)
def change_member(
    principal: KeysAdmin,
    project: ProjectId,
    member: MemberId,
    changes: MemberChanges,
    database: DatabaseDep,
) -> Member:
    """Their keys may do no more than the new role from the next request on. A higher role needs new
    keys: no key gains rights."""
    _require_can_give(principal, changes.role)
    with database.write() as session:
        row = projects.member(session, owner(session, principal, project).id, member)
        _require_no_gain(principal, Role(row.role), changes.role)
        return Member.from_row(projects.change_member(session, row, changes.role))


def _require_no_gain(principal: Principal, now: Role, role: Role) -> None:
    """A member who was demoted may have keys that a higher role makes strong again."""
    beyond = sorted(permissions_of(role) - permissions_of(now) - principal.permissions)
    if beyond:
        raise ForbiddenError(
            f"The role `{role}` gives {', '.join(f'`{name}`' for name in beyond)}, which this key "
            "does not have. Ask an admin of the project whose key has it.",
            role=str(role),
        )


@router.delete(
    "/projects/{project}/members/{member}",
    summary="Remove a member",
    responses=problems(401, 404, 422, 503),
)
def remove_member(
    principal: KeysAdmin, project: ProjectId, member: MemberId, database: DatabaseDep
) -> MemberRemoved:
    """Revokes all their keys. Their jobs stay: they belong to the project."""
    with database.write() as session:
        row = owner(session, principal, project)
        removed = projects.member(session, row.id, member)
        revoked = projects.remove_member(session, removed)
        return MemberRemoved(id=removed.id, revoked_keys=revoked)
