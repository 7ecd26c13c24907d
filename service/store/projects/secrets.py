"""Rows of the projects' secrets: sealed values, which only jobs of the same project are given."""

from collections.abc import Callable

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from service.errors import SecretNotFoundError
from service.store.database import clock, insert_or
from service.store.projects import quotas
from service.store.scope import Scope
from service.store.tables.projects import ProjectRow
from service.store.tables.teams import SecretRow


def put(session: Session, project: str, name: str, seal: Callable[[], str]) -> SecretRow:
    """Make the secret, or replace its value.

    It is sealed while the project's row is locked: `seal_again` finds it, or has ended before.
    """
    quotas.locked(session, project)
    now = clock(session)
    new = insert_or(session, SecretRow).values(
        project_id=project, name=name, sealed=seal(), created_at=now, updated_at=now
    )
    changed = {"sealed": new.excluded.sealed, "updated_at": new.excluded.updated_at}
    session.execute(new.on_conflict_do_update(index_elements=["project_id", "name"], set_=changed))
    return session.get_one(SecretRow, (project, name), populate_existing=True)


def list_all(session: Session, scope: Scope) -> list[SecretRow]:
    """By name."""
    query = select(SecretRow).where(scope.filter(SecretRow.project_id))
    return list(session.scalars(query.order_by(SecretRow.name, SecretRow.project_id)))


def sealed(session: Session, scope: Scope, name: str) -> str | None:
    """The value, for the one who opens it; `scope` is one project."""
    return session.scalar(
        select(SecretRow.sealed).where(scope.filter(SecretRow.project_id), SecretRow.name == name)
    )


def newest(session: Session) -> str | None:
    """The value that was sealed last, of any project."""
    return session.scalar(select(SecretRow.sealed).order_by(SecretRow.updated_at.desc()).limit(1))


def exists(session: Session, scope: Scope, name: str) -> bool:
    return sealed(session, scope, name) is not None


def remove(session: Session, scope: Scope, name: str) -> None:
    """Raises SecretNotFoundError."""
    statement = delete(SecretRow).where(scope.filter(SecretRow.project_id), SecretRow.name == name)
    if session.scalar(statement.returning(SecretRow.name)) is None:
        raise SecretNotFoundError(name)


def seal_again(session: Session, again: Callable[[str, str, str], str]) -> int:
    """Replace every sealed value by `again(project, name, sealed)`; how many there are."""
    session.execute(select(ProjectRow.id).order_by(ProjectRow.id).with_for_update())
    rows = session.scalars(select(SecretRow)).all()
    for row in rows:
        row.sealed = again(row.project_id, row.name, row.sealed)
    session.flush()
    return len(rows)
