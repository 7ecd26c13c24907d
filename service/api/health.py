"""Liveness and readiness of the service."""

import structlog
from fastapi import APIRouter
from sqlalchemy.exc import SQLAlchemyError

from service.api.dependencies import DatabaseDep, DispatcherDep
from service.api.errors import NotReadyError
from service.api.openapi import problems
from service.api.schemas.system import Live, Ready
from service.store import schema
from service.store.database import Database

router = APIRouter(prefix="/health", tags=["operations"])
_log = structlog.stdlib.get_logger(__name__)


@router.get("/live", summary="Liveness")
def get_liveness() -> Live:
    """200 while the process runs; checks nothing else."""
    return Live()


@router.get("/ready", summary="Readiness", responses=problems(503))
def get_readiness(database: DatabaseDep, dispatcher: DispatcherDep) -> Ready:
    """503 names the components that are not ready: `database`, `broker`."""
    parts = {
        "database": _database(database),
        "broker": "ok" if dispatcher.ping() else "unreachable",
    }
    missing = [f"{part} {state}" for part, state in parts.items() if state != "ok"]
    if missing:
        raise NotReadyError("; ".join(missing) + ".", parts=parts)
    return Ready(parts=parts)


def _database(database: Database) -> str:
    try:
        with database.read() as session:
            current = schema.is_current(session.connection())
    except SQLAlchemyError as error:
        _log.warning("database.unreachable", error=str(error))
        return "unreachable"
    return "ok" if current else "has another schema version: run `finetune migrate`"
