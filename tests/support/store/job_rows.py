"""Reads and writes rows of jobs, bypassing the service."""

from typing import Any

from sqlalchemy import select, update

from service.contract.stage.events import CheckpointSaved
from service.contract.states import JobState
from service.store.database import Database, db_now
from service.store.scheduling.registration import WorkerInfo
from service.store.tables.jobs import CheckpointRow, EventRow, JobRow
from tests.support.factories import make_job


def put(database: Database, job_id: str, **values: object) -> None:
    with database.write() as session:
        session.execute(update(JobRow).where(JobRow.id == job_id).values(**values))


def get(database: Database, job_id: str) -> JobRow:
    with database.read() as session:
        return session.get_one(JobRow, job_id)


def failure_of(database: Database, job_id: str) -> dict[str, Any]:
    """Why the job failed; the test fails if it did not."""
    failure = get(database, job_id).failure
    assert failure is not None
    return failure


def history_of(database: Database, job_id: str) -> list[EventRow]:
    with database.read() as session:
        query = select(EventRow).where(EventRow.job_id == job_id).order_by(EventRow.seq)
        return list(session.scalars(query))


def checkpoint_saved(step: int, attempt: int = 1, **values: Any) -> CheckpointSaved:
    path = f"attempts/{attempt}/checkpoints/{step}"
    return CheckpointSaved(step=step, path=path, bytes=10, manifest_sha256="a" * 64, **values)


PREPARED: dict[str, Any] = {
    "prepared_dir": "cache/prepared/entry",
    "model_dir": "cache/hub/model",
    "tokenizer_dir": "cache/hub/model",
    "model_revision": None,
    "dataset_revision": None,
    "data_fingerprint": "f" * 64,
    "splits": {},
}
TRAINED = {"output_dir": "attempts/2/output", "weights_sha256": "a" * 64}


def finished_job(database: Database, *, spec: dict[str, Any] | None = None, **columns: Any) -> str:
    """A job that has succeeded with a model."""
    job_id = make_job(database, **(spec or {}))
    values = {"state": JobState.SUCCEEDED, "results": {"train": TRAINED}, "epoch": 2}
    put(database, job_id, ended_at=db_now(-7200), tracking_final=True, **values | columns)
    return job_id


def add_checkpoint(database: Database, job_id: str, step: int, **columns: Any) -> None:
    """One of the second attempt, with the given columns instead of the usual ones."""
    row = {
        "job_id": job_id,
        "step": step,
        "epoch": 2,
        "path": f"attempts/2/checkpoints/{step}",
        "bytes": 1,
        "manifest_sha256": "b" * 64,
        "best": False,
        "created_at": db_now(),
        **columns,
    }
    with database.write() as session:
        session.add(CheckpointRow(**row))


WORKER = WorkerInfo(
    id="one@host",
    hostname="host",
    pid=7,
    queues=["cpu", "gpu"],
    devices=[{"type": "cpu", "name": "a CPU"}],
    version="1",
)


def snapshot(database: Database, job_id: str) -> dict[str, Any]:
    row = get(database, job_id)
    columns = {column.key: getattr(row, column.key) for column in row.__mapper__.column_attrs}
    return columns | {"history": [event.data for event in history_of(database, job_id)]}
