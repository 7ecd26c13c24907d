"""Counts of jobs for /metrics and /health."""

from collections import Counter, defaultdict

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.contract.states import JobState
from service.store.scope import Scope
from service.store.tables.jobs import AttemptRow, JobRow


def by_project(session: Session, scope: Scope) -> dict[str, Counter[str]]:
    """Id of a project → state → jobs."""
    statement = (
        select(JobRow.project_id, JobRow.state, func.count())
        .where(scope.filter(JobRow.project_id))
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
        .where(JobRow.state == JobState.QUEUED.value, scope.filter(JobRow.project_id))
        .group_by(JobRow.queue)
    )
    return {str(queue): count for queue, count in session.execute(statement)}


def waiting_for_host(session: Session, scope: Scope) -> Counter[str]:
    """Code of the lack → jobs that wait because the host of their last attempt lacks something."""
    code = AttemptRow.failure["code"].as_string()
    statement = (
        select(code, func.count())
        .join(JobRow, (JobRow.id == AttemptRow.job_id) & (JobRow.epoch == AttemptRow.epoch))
        .where(
            JobRow.state == JobState.QUEUED.value,
            JobRow.stage_attempt > 0,
            AttemptRow.outcome == "released",
            scope.filter(JobRow.project_id),
        )
        .group_by(code)
    )
    return Counter({code: count for code, count in session.execute(statement) if code is not None})
