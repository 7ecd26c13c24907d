"""Projects, and jobs of them."""

from typing import Any

from service.store.database import Database, db_now
from service.store.models import ProjectRow
from tests.support.factories import make_job
from tests.support.job_rows import put


def make_project(database: Database, name: str, **limits: Any) -> str:
    """Its id, which is its name."""
    with database.write() as session:
        session.add(ProjectRow(id=name, name=name, created_at=db_now(), **limits))
    return name


def limit(database: Database, project: str = "default", **limits: Any) -> None:
    with database.write() as session:
        row = session.get_one(ProjectRow, project)
        for key, value in limits.items():
            setattr(row, key, value)


def make_job_of(database: Database, project: str, *, gpus: int = 0, **changes: Any) -> str:
    """A queued job; with `gpus`, one whose training waits for so many."""
    job_id = make_job(database, **changes)
    values: dict[str, Any] = {"project_id": project}
    if gpus:
        queue = "gpu" if gpus == 1 else f"gpu.{gpus}"
        values |= {"stage": "train", "queue": queue, "min_gpus": gpus}
    put(database, job_id, **values)
    return job_id
