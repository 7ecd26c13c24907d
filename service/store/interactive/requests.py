"""Requests that are answered within seconds, each with a deadline: previews and predictions."""

from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.errors import DomainError, UnknownIdError
from service.store.database import db_now
from service.store.projects import quotas
from service.store.scope import Scope
from service.store.tables.base import new_id
from service.store.tables.interactive import BriefRow

Row = TypeVar("Row", bound=BriefRow)

URGENT: Final = 0
"""A client waits for the answer: the message is read before those of jobs."""
_KEPT_SECONDS: Final = 3600.0
_HEAD_START: Final = 2.0
"""Seconds that the API has to send the message, before the reconciler does."""

# `PreviewState` and `PredictionState` spell these alike.
QUEUED: Final = "queued"
RUNNING: Final = "running"
_UNFINISHED: Final = (QUEUED, RUNNING)


@dataclass(frozen=True)
class BriefRequests(Generic[Row]):
    table: type[Row]
    prefix: str
    """Of ids."""
    most_unfinished: int
    """Of a project."""
    deadline_seconds: float
    not_found: type[UnknownIdError]
    too_many: type[DomainError]

    def new_id(self) -> str:
        return new_id(self.prefix)

    def insert(self, session: Session, project: str, **values: Any) -> str:
        """The id of a queued one. Raises `too_many`, ProjectArchivedError.

        The project's row is locked, so that of requests at the same time no more get through than
        may.
        """
        owner = quotas.locked_open(session, project)
        table = self.table
        unfinished = select(func.count()).where(
            table.project_id == project, table.state.in_(_UNFINISHED)
        )
        if (session.scalar(unfinished) or 0) >= self.most_unfinished:
            raise self.too_many(
                f"The project {owner.name} may have {self.most_unfinished} unfinished "
                f"{table.__tablename__}. Wait until one has ended."
            )
        row = table(
            id=self.new_id(),
            project_id=project,
            state=QUEUED,
            created_at=db_now(),
            deadline_at=db_now(self.deadline_seconds),
            expires_at=db_now(_KEPT_SECONDS),
            next_publish_at=db_now(_HEAD_START),
            **values,
        )
        session.add(row)
        session.flush()
        return row.id

    def get(self, session: Session, scope: Scope, row_id: str) -> Row:
        """Raises `not_found`."""
        table = self.table
        query = select(table).where(
            table.id == row_id, scope.filter(table.project_id), table.expires_at > db_now()
        )
        row = session.scalars(query).one_or_none()
        if row is None:
            raise self.not_found(row_id)
        return row

    def is_unfinished(self, session: Session, scope: Scope, row_id: str) -> bool:
        """The state alone, without the result: waiting requests poll it."""
        query = select(self.table.state).where(
            self.table.id == row_id, scope.filter(self.table.project_id)
        )
        return session.scalar(query) in _UNFINISHED

    def unfinished(self, session: Session, scope: Scope) -> dict[str, int]:
        """State → how many have not ended."""
        table = self.table
        query = (
            select(table.state, func.count())
            .where(table.state.in_(_UNFINISHED), scope.filter(table.project_id))
            .group_by(table.state)
        )
        found = {row.state: row[1] for row in session.execute(query)}
        return {state: found.get(state, 0) for state in _UNFINISHED}
