"""The names that models have in OpenAI's API: what jobs begin with, and what they make."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.contract.spec import model_names
from service.store.scope import Scope
from service.store.tables.jobs import JobRow
from service.store.tables.projects import ProjectRow

_DEEPEST: Final = 8
"""Jobs in a chain, where each begins with the model of the one before."""
_UNKNOWN: Final = "model"


class _Origin(NamedTuple):
    name: str | None
    project_id: str
    model: dict[str, Any]
    """`model` of its spec."""


class ModelTitles:
    """Of these jobs, and of those that they begin with: read at once."""

    def __init__(self, session: Session, scope: Scope, jobs: Sequence[JobRow]) -> None:
        self._origins = {
            job.id: _Origin(job.name, job.project_id, job.spec["model"]) for job in jobs
        }
        for _ in range(_DEEPEST):
            sources = {origin.model.get("job") for origin in self._origins.values()}
            missing = sources - {None} - self._origins.keys()
            found = self._read(session, scope, missing) if missing else {}
            if not found:
                break
            self._origins |= found
        ids = {origin.project_id for origin in self._origins.values()}
        named = select(ProjectRow.id, ProjectRow.name).where(ProjectRow.id.in_(ids))
        self._projects = {row.id: row.name for row in session.execute(named)}

    @staticmethod
    def _read(session: Session, scope: Scope, ids: set[Any]) -> dict[str, _Origin]:
        columns = (JobRow.id, JobRow.name, JobRow.project_id, JobRow.spec["model"])
        query = select(*columns).where(JobRow.id.in_(ids), scope.filter(JobRow.project_id))
        return {job_id: _Origin(*rest) for job_id, *rest in session.execute(query)}

    def project(self, project_id: str) -> str:
        return str(self._projects.get(project_id, project_id))

    def made_by(self, job_id: str, step: int | None = None) -> str:
        """The name of the job's model, or of its checkpoint at `step`."""
        origin = self._origins[job_id]
        project = self.project(origin.project_id)
        return model_names.fine_tuned(self._base(job_id), project, origin.name, job_id, step)

    def begun_with(self, job_id: str) -> str:
        """The name of the model that the job begins with."""
        model = self._origins[job_id].model
        source = model.get("job")
        if source is None:
            return self._own_base(model)
        checkpoint = model.get("checkpoint")
        step = checkpoint if isinstance(checkpoint, int) else None
        if source in self._origins:
            return self.made_by(source, step)
        return model_names.fine_tuned(_UNKNOWN, "", None, source, step)

    def _base(self, job_id: str) -> str:
        origin = self._origins.get(job_id)
        for _ in range(_DEEPEST):
            if origin is None:
                return _UNKNOWN
            source = origin.model.get("job")
            if source is None:
                return self._own_base(origin.model)
            origin = self._origins.get(source)
        return _UNKNOWN

    @staticmethod
    def _own_base(model: dict[str, Any]) -> str:
        config = model.get("config") or {}
        return str(model.get("name_or_path") or config.get("model_type") or _UNKNOWN)
