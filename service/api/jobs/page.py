"""Reads a job's page from the database."""

from collections.abc import Mapping

from sqlalchemy import Connection
from starlette.responses import Response

from service.api.jobs import wait_reasons
from service.api.jobs.artifacts import artifact_of
from service.api.schemas.jobs import Job
from service.contract.states import ENDED, JobState, Stage
from service.settings import Settings
from service.store.database import Database
from service.store.jobs import lineage, queries
from service.store.jobs.queries import Place
from service.store.scope import Scope
from service.store.tables.jobs import JobRow

ARTIFACTS_ON_PAGE = 100


def read_page(database: Database, scope: Scope, job_id: str, settings: Settings) -> Job:
    """The job's current page. Raises JobNotFoundError."""
    with database.read() as session:
        job, place = queries.job_in_queue(session, scope, job_id)
        if job.epoch == 0:
            return _page_of_new(session.connection(), job, place, settings)
        rows, _ = queries.artifacts(session, scope, job_id, after=None, limit=ARTIFACTS_ON_PAGE)
        attempts = queries.attempts(session, scope, job_id)
        # A job without a model has no derived jobs.
        has_model = Stage.TRAIN in job.results or JobState(job.state) in ENDED
        return Job.build(
            job,
            queue_position=place and place.position,
            attempts=attempts,
            artifacts=[artifact_of(row) for row in rows],
            settings=settings,
            waiting=wait_reasons.of_page(session.connection(), job, place, attempts, settings),
            derived=lineage.derived(session, Scope(job.project_id), job.id) if has_model else (),
        )


def answer(
    page: Job, *, status_code: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """The page as JSON. FastAPI would validate it once more, in another thread."""
    content = page.model_dump_json()
    return Response(content, status_code, headers, media_type="application/json")


def page_of_new(database: Database, job: JobRow, place: Place | None, settings: Settings) -> Job:
    """The page of a job that no worker has claimed yet."""
    with database.connect() as connection:
        return _page_of_new(connection, job, place, settings)


def _page_of_new(
    connection: Connection, job: JobRow, place: Place | None, settings: Settings
) -> Job:
    return Job.build(
        job,
        queue_position=place and place.position,
        attempts=(),
        artifacts=(),
        settings=settings,
        waiting=wait_reasons.of_page(connection, job, place, (), settings),
    )
