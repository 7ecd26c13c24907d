"""Reads all that a job's page shows."""

from service.api.artifacts import artifact_of
from service.api.schemas.jobs import JobPage
from service.settings import Settings
from service.store import queries
from service.store.database import Database

ARTIFACTS_ON_PAGE = 100


def read_page(database: Database, job_id: str, settings: Settings) -> JobPage:
    """The job as it is stored now. Raises JobNotFoundError."""
    with database.read() as session:
        job = queries.get_job(session, job_id)
        rows, _ = queries.artifacts(session, job_id, after=None, limit=ARTIFACTS_ON_PAGE)
        return JobPage.build(
            job,
            queue_position=queries.queue_position(session, job),
            attempts=queries.attempts(session, job_id),
            artifacts=[artifact_of(row) for row in rows],
            settings=settings,
        )
