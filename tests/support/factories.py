"""Specs and jobs for the tests of several rooms."""

from typing import Any

from service.contract.spec.spec import JobSpec
from service.jobs.dispatch import Dispatcher
from service.jobs.submissions import Submissions, Submitted
from service.store.database import Database
from service.store.files import files
from service.store.jobs import claims, state
from service.store.jobs.claims import Claim
from service.store.jobs.endings import Policy
from service.store.tables.projects import DEFAULT_PROJECT

POLICY = Policy(crash_limit=3, retry_backoff_seconds=10)


def make_spec(**changes: Any) -> JobSpec:
    """The smallest valid spec, with top-level fields replaced."""
    body: dict[str, Any] = {
        "task": "question-answering",
        "model": {"name_or_path": "org/model"},
        "dataset": {"source": "hub", "name": "squad"},
    }
    return JobSpec.model_validate(body | changes)


def make_job(database: Database, **changes: Any) -> str:
    """A queued job; its id."""
    job_id = state.new_job_id()
    with database.write() as session:
        state.insert(session, job_id, make_spec(**changes))
    return job_id


def submit(database: Database, dispatcher: Dispatcher, spec: JobSpec, **options: Any) -> Submitted:
    """As the API does."""
    return Submissions(database, dispatcher).submit(spec, **options)


def claim_job(
    database: Database, job_id: str, worker_id: str = "worker-1", lease_seconds: float = 60
) -> Claim:
    """Claim the waiting job; the test fails if it cannot be claimed."""
    with database.write() as session:
        claimed = claims.claim(
            session,
            job_id,
            worker_id,
            queues=["cpu", "gpu"],
            gpus=(),
            lease_seconds=lease_seconds,
        )
    assert claimed is not None
    return claimed


def add_file(
    database: Database, file_id: str | None = None, *, filename: str = "a", size: int = 1
) -> str:
    """The id of an uploaded file that exists only as a row."""
    file_id = file_id or files.new_id()
    known: dict[str, Any] = {"filename": filename, "purpose": "fine-tune", "sha256": "0" * 64}
    with database.write() as session:
        files.add(session, DEFAULT_PROJECT, file_id=file_id, size=size, **known)
    return file_id
