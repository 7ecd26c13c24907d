"""The workers, their devices and their jobs."""

from collections import defaultdict

from fastapi import APIRouter

from service.api.http.dependencies import DatabaseDep, SettingsDep
from service.api.http.principal import JobsRead
from service.api.openapi.document import problems
from service.api.schemas.rows import model_from_row
from service.api.schemas.system import Worker, WorkerJob, WorkerList
from service.contract.states import Stage
from service.store.jobs import queries

router = APIRouter(prefix="/v1/workers", tags=["workers"])


@router.get("", summary="List live workers", responses=problems(401, 503))
def list_workers(principal: JobsRead, database: DatabaseDep, settings: SettingsDep) -> WorkerList:
    """Workers whose last heartbeat is at most three intervals old."""
    with database.read() as session:
        rows = queries.live_workers(session, settings.alive_seconds)
        running = queries.running_jobs(session, principal.scope)
    jobs: dict[str | None, list[WorkerJob]] = defaultdict(list)
    for job in running:
        stage = Stage(job.stage)
        jobs[job.worker_id].append(WorkerJob(id=job.job_id, name=job.name, stage=stage))
    return WorkerList(data=[model_from_row(Worker, row, jobs=jobs[row.id]) for row in rows])
