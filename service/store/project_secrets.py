"""Rows of the projects' secrets: sealed values, which only jobs of the same project are given."""

from collections.abc import Callable

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from service.errors import SecretNotFoundError
from service.store import jobs
from service.store.models import SecretRow
from service.store.scope import Scope


def put(session: Session, project: str, name: str, sealed: str) -> SecretRow:
    """Make the secret, or replace its value."""
    now = jobs.clock(session)
    row = session.get(SecretRow, (project, name), with_for_update=True)
    if row is None:
        row = SecretRow(project_id=project, name=name, created_at=now)
        session.add(row)
    row.sealed, row.updated_at = sealed, now
    session.flush()
    return row


def list_all(session: Session, scope: Scope) -> list[SecretRow]:
    """By name."""
    query = select(SecretRow).where(scope.of(SecretRow.project_id))
    return list(session.scalars(query.order_by(SecretRow.name, SecretRow.project_id)))


def sealed(session: Session, scope: Scope, name: str) -> str | None:
    """The value, for the one who opens it; `scope` is one project."""
    return session.scalar(
        select(SecretRow.sealed).where(scope.of(SecretRow.project_id), SecretRow.name == name)
    )


def exists(session: Session, scope: Scope, name: str) -> bool:
    return sealed(session, scope, name) is not None


def remove(session: Session, scope: Scope, name: str) -> None:
    """Raises SecretNotFoundError."""
    gone = delete(SecretRow).where(scope.of(SecretRow.project_id), SecretRow.name == name)
    if session.scalar(gone.returning(SecretRow.name)) is None:
        raise SecretNotFoundError(name)


def seal_again(session: Session, again: Callable[[str, str, str], str]) -> int:
    """Replace every sealed value by `again(project, name, sealed)`; how many there are."""
    rows = session.scalars(select(SecretRow).with_for_update()).all()
    for row in rows:
        row.sealed = again(row.project_id, row.name, row.sealed)
    session.flush()
    return len(rows)
