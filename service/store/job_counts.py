"""Counts of jobs for /metrics."""

from collections import Counter, defaultdict

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.contract.states import JobState
from service.store.models import JobRow
from service.store.scope import Scope


def by_project(session: Session, scope: Scope) -> dict[str, Counter[str]]:
    """Id of a project → state → jobs."""
    statement = (
        select(JobRow.project_id, JobRow.state, func.count())
        .where(scope.of(JobRow.project_id))
        .group_by(JobRow.project_id, JobRow.state)
    )
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for project, state, count in session.execute(statement):
        found[project][state] = count
    return found


def queue_depths(session: Session, scope: Scope) -> dict[str, int]:
    """Queue → jobs that wait in it."""
    statement = (
        select(JobRow.queue, func.count())
        .where(JobRow.state == JobState.QUEUED.value, scope.of(JobRow.project_id))
        .group_by(JobRow.queue)
    )
    return {str(queue): count for queue, count in session.execute(statement)}
