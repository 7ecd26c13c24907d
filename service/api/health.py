"""Liveness and readiness of the service."""

from typing import Final

import structlog
from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter
from sqlalchemy.exc import SQLAlchemyError

from service.api.dependencies import Services, ServicesDep
from service.api.errors import NotReadyError
from service.api.openapi import problems
from service.api.schemas.system import Live, Ready
from service.jobs import disk_space
from service.store import schema
from service.store.database import Database

router = APIRouter(prefix="/health", tags=["operations"])
_log = structlog.stdlib.get_logger(__name__)


# Coroutines, and a thread of its own: other requests may have taken all the others.
_THREAD: Final = CapacityLimiter(2)


@router.get("/live", summary="Liveness")
async def get_liveness() -> Live:
    """200 while the process runs; checks nothing else."""
    return Live()


@router.get("/ready", summary="Readiness", responses=problems(503))
async def get_readiness(services: ServicesDep) -> Ready:
    """503 names the components that are not ready: `database`, `broker`, `disk`."""
    parts = await to_thread.run_sync(_parts, services, limiter=_THREAD)
    missing = [f"{part} {state}" for part, state in parts.items() if state != "ok"]
    if missing:
        raise NotReadyError("; ".join(missing) + ".", parts=parts)
    return Ready(parts=parts)


def _parts(services: Services) -> dict[str, str]:
    space = disk_space.space(services.settings)
    return {
        "database": _database(services.database),
        "broker": "ok" if services.dispatcher.ping() else "unreachable",
        "disk": f"full: {space}" if space.is_short else "ok",
    }


def _database(database: Database) -> str:
    try:
        with database.read() as session:
            current = schema.is_current(session.connection())
    except SQLAlchemyError as error:
        _log.warning("database.unreachable", error=str(error))
        return "unreachable"
    return "ok" if current else "has another schema version: run `finetune migrate`"
