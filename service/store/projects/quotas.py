"""The quotas of projects: each is checked in the transaction that uses it up.

A quota that is set has its project's row locked until then, so that of requests at the same time
only those get through that there is room for. Without a quota nothing is locked.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from sqlalchemy import ColumnElement, Select, func, select
from sqlalchemy.orm import Session

from service.contract.spec.spec import JobSpec
from service.contract.states import JobState
from service.errors import PriorityQuotaError, QueueQuotaError, StorageQuotaError
from service.store.projects import projects
from service.store.scope import Scope
from service.store.tables.files import FileRow
from service.store.tables.jobs import ArtifactRow, CheckpointRow, JobRow
from service.store.tables.projects import ProjectRow
from service.store.tables.uploads import UploadPartRow, UploadRow

_WAITING: Final = (JobState.QUEUED, JobState.PAUSED)
"""What counts as queued: pausing a job makes no room for another one. A search's trials that wait
at a rung do not count: only their search resumes them, one at a time, and it could not go on if
they took all the room."""
LIMITS_JOBS: Final = (
    ProjectRow.archived_at.is_not(None)
    | ProjectRow.max_queued_jobs.is_not(None)
    | ProjectRow.highest_priority.is_not(None)
)
"""Whether `require_queue_room` has anything to check for a project."""


def locked(session: Session, project: str) -> ProjectRow:
    """The project's row, ours until the transaction ends. Lock rows of jobs and files first: in
    another order two transactions could wait for each other."""
    query = select(ProjectRow).where(ProjectRow.id == project).with_for_update()
    return session.scalars(query, execution_options={"populate_existing": True}).one()


def locked_open(session: Session, project: str) -> ProjectRow:
    """The same of a project that takes new things. Raises ProjectArchivedError."""
    row = locked(session, project)
    if row.archived_at is not None:
        raise projects.archived_error(row.name)
    return row


# ---- queued jobs --------------------------------------------------------------------------------


def as_allowed(session: Session, project: str, spec: JobSpec) -> JobSpec:
    """The spec as the project may submit it at this moment; reserves nothing. Raises
    QueueQuotaError, PriorityQuotaError, ProjectArchivedError."""
    highest = require_queue_room(session, [project], is_trial=True)
    return allowed_priority(spec, highest.get(project))


def require_queue_room(
    session: Session, new: Iterable[str], *, is_trial: bool = False
) -> dict[str, int]:
    """`new`: the project of each job that is about to be queued. Returns the most urgent priority
    of those projects that have a limit of it. Raises QueueQuotaError, ProjectArchivedError.

    Locks the projects, except on trial: to be called after the rows of jobs and files are locked.
    """
    wanted = Counter(new)
    limited = select(
        ProjectRow.id, ProjectRow.name, ProjectRow.archived_at, ProjectRow.highest_priority
    ).where(ProjectRow.id.in_(wanted), LIMITS_JOBS)
    highest: dict[str, int] = {}
    for project, name, archived_at, priority in session.execute(limited.order_by(ProjectRow.id)):
        if archived_at is not None:
            raise projects.archived_error(name)
        row = session.get_one(ProjectRow, project) if is_trial else locked(session, project)
        _require_queue_room(session, row, wanted[project])
        if priority is not None:
            highest[project] = priority
    return highest


def allowed_priority(spec: JobSpec, highest: int | None) -> JobSpec:
    """The spec, with the nearest priority that is allowed if it names none. Raises
    PriorityQuotaError."""
    if highest is None or spec.priority >= highest:
        return spec
    if "priority" in spec.model_fields_set:
        raise PriorityQuotaError(
            f"The project may ask for priority {highest} at most (0 is the most urgent); "
            f"`priority` is {spec.priority}.",
            quota="highest_priority",
            limit=highest,
            used=spec.priority,
        )
    return spec.model_copy(update={"priority": highest})


def _require_queue_room(session: Session, project: ProjectRow, more: int) -> None:
    limit = project.max_queued_jobs
    if limit is None:
        return
    waiting = select(JobRow.id).where(
        JobRow.project_id == project.id,
        JobRow.state.in_(_WAITING),
        JobRow.trial.is_(None) | (JobRow.state == JobState.QUEUED),
    )
    count = session.scalar(select(func.count()).select_from(waiting.limit(limit + 1).subquery()))
    if (count or 0) + more > limit:
        raise QueueQuotaError(
            f"The project {project.name} may have {limit:,} queued or paused "
            f"job{'' if limit == 1 else 's'}, and has {count}. Wait until some "
            "have started, or cancel some.",
            quota="max_queued_jobs",
            limit=limit,
            used=count,
        )


# ---- bytes --------------------------------------------------------------------------------------


def stored_bytes(session: Session, project: str) -> int:
    """Of its files, parts of files, and the registered checkpoints and artifacts of its jobs."""
    return stored_by_project(session, Scope(project))[project]


def stored_by_project(session: Session, scope: Scope) -> dict[str, int]:
    """The same of every project in the scope that stores anything, and of a scope's own project."""
    files = (
        select(FileRow.project_id, func.sum(FileRow.bytes))
        .where(scope.filter(FileRow.project_id))
        .group_by(FileRow.project_id)
    )
    parts = (
        select(UploadRow.project_id, func.sum(UploadPartRow.bytes))
        .join(UploadPartRow, UploadPartRow.upload_id == UploadRow.id)
        .where(scope.filter(UploadRow.project_id))
        .group_by(UploadRow.project_id)
    )
    checkpoints = _of_jobs(scope, CheckpointRow, CheckpointRow.pruned_at.is_(None))
    artifacts = _of_jobs(scope, ArtifactRow, JobRow.workspace_pruned_at.is_(None))
    found = Counter({} if scope.project is None else {scope.project: 0})
    for query in (files, parts, checkpoints, artifacts):
        for project, size in session.execute(query):
            found[project] += int(size)
    return dict(found)


def _of_jobs(
    scope: Scope, table: type[CheckpointRow] | type[ArtifactRow], is_there: ColumnElement[bool]
) -> Select[str, int]:
    return (
        select(JobRow.project_id, func.sum(table.bytes))
        .join(table, table.job_id == JobRow.id)
        .where(is_there, scope.filter(JobRow.project_id))
        .group_by(JobRow.project_id)
    )


def require_room(session: Session, project: str, size: int) -> None:
    """Room for a file of this size. Raises StorageQuotaError."""
    if session.scalar(select(ProjectRow.max_bytes).where(ProjectRow.id == project)) is None:
        return
    row = locked(session, project)
    used = stored_bytes(session, project)
    if row.max_bytes is not None and used + size > row.max_bytes:
        raise StorageQuotaError(
            f"The project {row.name} may store {row.max_bytes:,} bytes and stores {used:,}; this "
            f"file has {size:,}. Delete files or jobs of the project first.",
            quota="max_bytes",
            limit=row.max_bytes,
            used=used,
        )


def over_bytes(session: Session, project: str) -> tuple[int, int] | None:
    """What a project stores and what it may, if that is less."""
    limit = session.scalar(select(ProjectRow.max_bytes).where(ProjectRow.id == project))
    if limit is None:
        return None
    used = stored_bytes(session, project)
    return (used, limit) if used > limit else None
