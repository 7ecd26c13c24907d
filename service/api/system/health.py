"""Liveness and readiness of the service."""

from typing import Final

import structlog
from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter
from sqlalchemy.exc import SQLAlchemyError

from service.api.http.dependencies import Services, ServicesDep
from service.api.openapi.document import problems
from service.api.problems.errors import NotReadyError
from service.api.schemas.system import Live, Ready
from service.contract.failures import FailureCode
from service.jobs import disk_space
from service.jobs.disk_space import Space
from service.store import schema
from service.store.database import Database
from service.store.jobs import counts
from service.store.scope import EVERYTHING

router = APIRouter(prefix="/health", tags=["operations"])
_log = structlog.stdlib.get_logger(__name__)


# Coroutines, and a thread of its own: other requests may have taken all the others.
_THREAD: Final = CapacityLimiter(2)
_LOW: Final = "low"


@router.get("/live", summary="Liveness")
async def get_liveness() -> Live:
    """200 while the process runs; checks nothing else."""
    return Live()


@router.get("/ready", summary="Readiness", responses=problems(503))
async def get_readiness(services: ServicesDep) -> Ready:
    """503 names the components that are not ready: `database`, `broker`, `disk`. With 200, `disk`
    begins with `low` while jobs wait for space."""
    parts = await to_thread.run_sync(_parts, services, limiter=_THREAD)
    is_ready = ("ok", _LOW)
    missing = [f"{part} {state}" for part, state in parts.items() if not state.startswith(is_ready)]
    if missing:
        raise NotReadyError("; ".join(missing) + ".", parts=parts)
    return Ready(parts=parts)


def _parts(services: Services) -> dict[str, str]:
    space = disk_space.space(services.settings)
    return {
        "database": _database(services.database),
        "broker": "ok" if services.dispatcher.ping() else "unreachable",
        "disk": f"full: {space}" if space.is_short else _disk(services.database, space),
    }


def _disk(database: Database, space: Space) -> str:
    try:
        with database.read() as session:
            waiting = counts.waiting_for_host(session, EVERYTHING)[FailureCode.DISK_FULL]
    except SQLAlchemyError:  # which `database` says
        return "ok"
    jobs = "1 job waits" if waiting == 1 else f"{waiting} jobs wait"
    return f"{_LOW}: {jobs} for space; {space}" if waiting else "ok"


def _database(database: Database) -> str:
    try:
        with database.read() as session:
            current = schema.is_current(session.connection())
            if not current:
                schema.require_upgradable(session.connection())
    except schema.UnusableSchemaError as error:
        return error.why
    except SQLAlchemyError as error:
        _log.warning("database.unreachable", error=str(error))
        return "unreachable"
    return "ok" if current else "has another schema version: run `finetune migrate`"
