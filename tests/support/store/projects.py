"""Projects, jobs of them, and claims on these."""

from datetime import timedelta
from typing import Any

from sqlalchemy import update

from service.store.database import Database, db_now
from service.store.jobs import claims
from service.store.jobs.claims import Claim
from service.store.tables.jobs import AttemptRow
from service.store.tables.projects import ProjectRow
from tests.support.factories import make_job
from tests.support.store.job_rows import get, put


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


def try_to_claim(database: Database, job_id: str, gpus: int = 0) -> Claim | None:
    """As a worker of the job's queue that has so many GPUs."""
    queue, given = get(database, job_id).queue, [f"GPU-{n}" for n in range(gpus)]
    with database.write() as session:
        return claims.claim(session, job_id, "w", queues=[queue], gpus=given, lease_seconds=60)


def claim_of(database: Database, project: str = "default", gpus: int = 0) -> Claim:
    """Of a new job."""
    claimed = try_to_claim(database, make_job_of(database, project, gpus=gpus), gpus)
    assert claimed is not None
    return claimed


def began(database: Database, claimed: Claim, seconds: float) -> None:
    """As if the attempt had begun so long ago."""
    at = claimed.started_at - timedelta(seconds=seconds)
    mine = (AttemptRow.job_id == claimed.job_id, AttemptRow.epoch == claimed.epoch)
    with database.write() as session:
        session.execute(update(AttemptRow).where(*mine).values(started_at=at))
