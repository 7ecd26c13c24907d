"""Projects and their members."""

import uuid
from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service.contract.roles import DEFAULT_PROJECT, Role
from service.errors import (
    MemberExistsError,
    MemberNotFoundError,
    ProjectArchivedError,
    ProjectExistsError,
    ProjectNotFoundError,
    ProjectRenameError,
)
from service.store.database import db_now
from service.store.projects import keys
from service.store.scope import Scope
from service.store.tables.projects import MemberRow, ProjectRow


def find(connection: Connection, scope: Scope, id_or_name: str) -> str:
    """The project's id. Raises ProjectNotFoundError, also for one outside of the scope."""
    found = connection.execute(
        select(ProjectRow.id).where(_is_called(id_or_name), scope.filter(ProjectRow.id))
    ).scalar_one_or_none()
    if found is None:
        raise ProjectNotFoundError(id_or_name)
    return str(found)


def _is_called(id_or_name: str) -> Any:
    # Postgres refuses a NUL in any text. No name looks like an id, but for the default project's.
    text = id_or_name.replace("\x00", "")
    return (ProjectRow.id == text) | (ProjectRow.name == text)


def get(session: Session, scope: Scope, id_or_name: str) -> ProjectRow:
    """Raises ProjectNotFoundError, also for one outside of the scope."""
    query = select(ProjectRow).where(_is_called(id_or_name), scope.filter(ProjectRow.id))
    row = session.scalars(query).one_or_none()
    if row is None:
        raise ProjectNotFoundError(id_or_name)
    return row


def list_all(session: Session, scope: Scope) -> list[ProjectRow]:
    """By name."""
    query = select(ProjectRow).where(scope.filter(ProjectRow.id)).order_by(ProjectRow.name)
    return list(session.scalars(query))


def create(session: Session, name: str, limits: dict[str, Any]) -> ProjectRow:
    """Raises ProjectExistsError."""
    row = ProjectRow(id=f"proj-{uuid.uuid4().hex}", name=name, created_at=db_now(), **limits)
    _require_free(session, row.id, name)
    try:
        with session.begin_nested():
            session.add(row)
    except IntegrityError as error:
        raise _taken(name) from error
    session.refresh(row)
    return row


def _require_free(session: Session, project_id: str, name: str) -> None:
    """No project is called as another one was: MLflow has the other's runs under that name."""
    is_taken = (ProjectRow.name == name) | (ProjectRow.mlflow_name == name)
    others = select(ProjectRow.id).where(is_taken, ProjectRow.id != project_id).limit(1)
    if session.scalar(others) is not None:
        raise _taken(name)


def _taken(name: str) -> ProjectExistsError:
    return ProjectExistsError(f"There is or was a project {name!r} already: choose another name.")


def change(session: Session, row: ProjectRow, changes: dict[str, Any]) -> ProjectRow:
    """Set limits; `archived`: whether it takes new jobs and files. Raises ProjectExistsError and
    ProjectRenameError for a `name`."""
    archived, name = changes.pop("archived", None), changes.pop("name", None)
    if archived is not None and archived != (row.archived_at is not None):
        row.archived_at = db_now() if archived else None
    if name is not None and name != row.name:
        _rename(session, row, name)
    for limit, value in changes.items():
        setattr(row, limit, value)
    session.flush()
    session.refresh(row)
    return row


def _rename(session: Session, row: ProjectRow, name: str) -> None:
    if row.id == DEFAULT_PROJECT:
        raise ProjectRenameError("The default project is found by its name and keeps it.")
    _require_free(session, row.id, name)
    try:
        with session.begin_nested():
            row.name = name
    except IntegrityError as error:
        raise _taken(name) from error


def require_open(session: Session, project_ids: Iterable[str]) -> None:
    """Raises ProjectArchivedError if one of them takes no new jobs and files."""
    wanted = sorted(set(project_ids))
    archived = select(ProjectRow.name).where(
        ProjectRow.id.in_(wanted), ProjectRow.archived_at.is_not(None)
    )
    # Without the ORM, which takes longer than the statement.
    name = session.connection().execute(archived.limit(1)).scalar_one_or_none()
    if name is not None:
        raise archived_error(name)


def archived_error(name: str) -> ProjectArchivedError:
    return ProjectArchivedError(
        f"The project {name} is archived and takes no new jobs and files. The operator can "
        f"open it again: finetune projects set {name} --no-archived"
    )


def any_but_default(connection: Connection) -> bool:
    """Whether there is a project other than the default one, archived or not."""
    other = select(ProjectRow.id).where(ProjectRow.id != DEFAULT_PROJECT).limit(1)
    return connection.execute(other).scalar_one_or_none() is not None


# ---- members ------------------------------------------------------------------------------------


def members(session: Session, project_id: str) -> list[MemberRow]:
    """Those who have not been removed, by name."""
    query = select(MemberRow).where(
        MemberRow.project_id == project_id, MemberRow.removed_at.is_(None)
    )
    return list(session.scalars(query.order_by(MemberRow.name)))


def member(session: Session, project_id: str, id_or_name: str) -> MemberRow:
    """Raises MemberNotFoundError, also for one who was removed."""
    text = id_or_name.replace("\x00", "")
    query = select(MemberRow).where(
        MemberRow.project_id == project_id,
        MemberRow.removed_at.is_(None),
        (MemberRow.id == text) | (MemberRow.name == text),
    )
    found = list(session.scalars(query))
    exact = [row for row in found if row.id == text] or found
    if not exact:
        raise MemberNotFoundError(f"The project has no member {id_or_name[:100]!r}.")
    return exact[0]


def add_member(session: Session, project_id: str, name: str, role: Role) -> MemberRow:
    """Raises MemberExistsError."""
    row = MemberRow(
        id=f"member-{uuid.uuid4().hex[:32]}",
        project_id=project_id,
        name=name,
        role=role,
        created_at=db_now(),
    )
    try:
        with session.begin_nested():
            session.add(row)
    except IntegrityError as error:
        raise MemberExistsError(f"The project has a member {name!r} already.") from error
    session.refresh(row)
    return row


def change_member(session: Session, row: MemberRow, role: Role) -> MemberRow:
    """Keys of the member that may do more lose it at once; none gains anything."""
    row.role = role
    session.flush()
    return row


def remove_member(session: Session, row: MemberRow) -> list[str]:
    """Remove a member and revoke all their keys; the ids of those keys."""
    row.removed_at = db_now()
    session.flush()
    return keys.revoke_all_of(session, row.id)
