"""Reads a job's page from the database."""

from collections.abc import Mapping

from sqlalchemy.orm import Session
from starlette.responses import Response

from service.api.artifacts import artifact_of
from service.api.schemas.jobs import Job
from service.contract.states import ENDED, JobState, Stage
from service.settings import Settings
from service.store import lineage, queries
from service.store.database import Database
from service.store.models import JobRow

ARTIFACTS_ON_PAGE = 100


def read_page(database: Database, job_id: str, settings: Settings) -> Job:
    """The job's current page. Raises JobNotFoundError."""
    with database.read() as session:
        job, position = queries.job_in_queue(session, job_id)
        if job.epoch == 0:
            return page_of_new(job, position, settings)
        rows, _ = queries.artifacts(session, job_id, after=None, limit=ARTIFACTS_ON_PAGE)
        return Job.build(
            job,
            queue_position=position,
            attempts=queries.attempts(session, job_id),
            artifacts=[artifact_of(row) for row in rows],
            settings=settings,
            derived=_derived(session, job),
        )


def _derived(session: Session, job: JobRow) -> list[str]:
    """A job without a model has no derived jobs."""
    has_model = Stage.TRAIN in job.results or JobState(job.state) in ENDED
    return lineage.derived(session, job.id) if has_model else []


def answer(
    page: Job, *, status_code: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """The page as JSON. FastAPI would validate it once more, in another thread."""
    content = page.model_dump_json()
    return Response(content, status_code, headers, media_type="application/json")


def page_of_new(job: JobRow, queue_position: int | None, settings: Settings) -> Job:
    """The page of a job that no worker has claimed yet."""
    return Job.build(
        job, queue_position=queue_position, attempts=(), artifacts=(), settings=settings
    )
