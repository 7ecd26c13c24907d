"""The workers, their devices and their jobs."""

from fastapi import APIRouter

from service.api.dependencies import DatabaseDep, SettingsDep
from service.api.openapi import problems
from service.api.schemas.system import Worker, WorkerDoctor, WorkerJob, WorkerList
from service.api.visitor import JobsRead
from service.contract.states import Stage
from service.store import queries
from service.store.models import WorkerRow

router = APIRouter(prefix="/v1/workers", tags=["workers"])


@router.get("", summary="List live workers", responses=problems(401, 503))
def list_workers(visitor: JobsRead, database: DatabaseDep, settings: SettingsDep) -> WorkerList:
    """Workers whose last heartbeat is at most three intervals old."""
    with database.read() as session:
        rows = queries.live_workers(session, settings.alive_seconds)
        running = queries.running_jobs(session, visitor.scope)
    return WorkerList(data=[_worker(row, running) for row in rows])


def _worker(row: WorkerRow, running: list[queries.RunningJob]) -> Worker:
    return Worker(
        id=row.id,
        hostname=row.hostname,
        pid=row.pid,
        queues=row.queues,
        devices=row.devices,
        slots=row.slots,
        version=row.version,
        started_at=row.started_at,
        last_seen_at=row.last_seen_at,
        jobs=[
            WorkerJob(id=job.job_id, name=job.name, stage=Stage(job.stage))
            for job in running
            if job.worker_id == row.id
        ],
        doctor=None if row.doctor is None else WorkerDoctor.model_validate(row.doctor),
    )
