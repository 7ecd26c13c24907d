"""Whose rows a query may see and change. Others are treated as if they did not exist."""

from typing import Any, Final, NamedTuple

from sqlalchemy import ColumnElement, bindparam, exists, or_, true
from sqlalchemy.orm import InstrumentedAttribute, aliased

from service.store.tables.jobs import JobRow


class Scope(NamedTuple):
    """One project's rows, or with None those of all projects."""

    project: str | None

    def filter(self, column: InstrumentedAttribute[Any]) -> ColumnElement[bool]:
        """The condition on a table's `project_id`."""
        return true() if self.project is None else column == self.project

    @property
    def given(self) -> dict[str, Any]:
        """The parameter of `within`."""
        return {_PARAMETER: self.project}

    def has(self, project_id: str) -> bool:
        return self.project in (None, project_id)

    def filter_by_job(self, column: InstrumentedAttribute[str]) -> ColumnElement[bool]:
        """The condition on the `job_id` of a row that belongs to a job."""
        if self.project is None:
            return true()
        # Aliased, so that it can stand in a query of jobs.
        owner = aliased(JobRow)
        return exists().where(owner.id == column, owner.project_id == self.project)


EVERYTHING: Final = Scope(None)
"""For operators, and for workers, the reconciler and retention, which act for no user."""

_PARAMETER: Final = "scope_project"


def within(column: InstrumentedAttribute[str]) -> ColumnElement[bool]:
    """`Scope.filter` for a statement that is built once. Use it only with a condition that an
    index serves: planned once for all scopes, it cannot use one itself."""
    asked = bindparam(_PARAMETER, type_=column.type)
    return or_(asked.is_(None), column == asked)
