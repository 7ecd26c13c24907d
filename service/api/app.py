"""The FastAPI app: its services, its middleware and its routes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from typing import Any, Final

from anyio import to_thread
from fastapi import FastAPI
from fastapi.routing import APIRoute

from service import logging
from service.api import (
    actions,
    artifacts,
    checkpoints,
    docs,
    file_checks,
    files,
    health,
    history,
    jobs,
    metrics,
    model,
    openapi,
    tasks,
    workers,
)
from service.api.dependencies import Services
from service.api.errors import add_handlers
from service.api.middleware import Authentication, BodyLimit, RequestContext
from service.api.query_parameters import KNOWN_ONLY
from service.jobs.dispatch import Dispatcher
from service.jobs.submissions import Submissions
from service.settings import Settings, get_settings
from service.store.database import Database

_DESCRIPTION: Final = (
    "Fine-tune models: upload data, submit a job, watch it, download the finished model.\n\n"
    "Errors are RFC 9457 problem details with a stable `code` and a `message` to print."
)
_ROUTERS: Final = (
    jobs,
    actions,
    artifacts,
    model,
    history,
    checkpoints,
    files,
    file_checks,
    tasks,
    workers,
)
# Probes and scrapers may add parameters of their own.
_OPEN_ROUTERS: Final = (health, metrics, docs)


def create_app(settings: Settings | None = None) -> FastAPI:
    """The ASGI app; `uvicorn --factory service.api.app:create_app` calls it without settings."""
    settings = settings or get_settings()
    logging.configure(settings)
    database, dispatcher = Database(settings.sqlalchemy_url), Dispatcher(settings)
    services = Services(settings, database, dispatcher, Submissions(database, dispatcher))
    counters = metrics.Metrics()
    app = FastAPI(
        title="Fine-tuning service",
        version=version("finetune-service"),
        description=_DESCRIPTION,
        lifespan=_lifespan,
        generate_unique_id_function=_operation_id,
        # A redirect would be an answer that no document declares.
        redirect_slashes=False,
        # FastAPI's own pages load their scripts from another host.
        docs_url=None,
        redoc_url=None,
    )
    app.state.services = services
    app.state.metrics = counters
    add_handlers(app)
    # The last one added is the outermost.
    app.add_middleware(Authentication, database=services.database)
    app.add_middleware(BodyLimit, limit=settings.max_body_bytes)
    app.add_middleware(RequestContext, metrics=counters)
    for room in _ROUTERS:
        app.include_router(room.router, dependencies=[KNOWN_ONLY], responses=openapi.problems(422))
    for room in _OPEN_ROUTERS:
        app.include_router(room.router)
    app.openapi = partial(_document, app)  # type: ignore[method-assign]
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    services: Services = app.state.services
    settings = services.settings
    await to_thread.run_sync(files.remove_leftovers, settings.files_dir)
    try:
        yield
    finally:
        services.dispatcher.close()
        services.database.dispose()


def _operation_id(route: APIRoute) -> str:
    return route.name


def _document(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        app.openapi_schema = openapi.build(app)
    return app.openapi_schema
