"""The FastAPI app: its services, its middleware and its routes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache, partial
from importlib.metadata import version
from typing import Any, Final

import structlog
from anyio import to_thread
from fastapi import APIRouter, Depends, FastAPI, Request
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute, Route

from service import logging
from service.api.files import checks as file_checks
from service.api.files import routes as files
from service.api.files import upload_locks
from service.api.http import limits
from service.api.http.accounting import Accounting, RefusalLog, note
from service.api.http.connection_limits import affordable
from service.api.http.cross_site import CORS, OtherSites
from service.api.http.dependencies import Services
from service.api.http.key_use import KeyUse
from service.api.http.limits import ConcurrencyLimit, StreamSlots, UploadSlots, Waiters
from service.api.http.middleware import MOST_BODY_BYTES, Authentication, BodyLimit, RequestContext
from service.api.http.query_parameters import refuse_unknown
from service.api.interactive import prediction_watch, predictions, previews
from service.api.jobs import actions, artifacts, checkpoints, model, records
from service.api.jobs import routes as jobs
from service.api.live import routes as live
from service.api.live.feed import Feed
from service.api.mlflow import login
from service.api.mlflow.proxy import PREFIX, MlflowProxy
from service.api.mlflow.visitors import MlflowVisitors
from service.api.openai import (
    completions,
    fine_tuning_history,
    fine_tuning_jobs,
    not_offered,
    uploads,
)
from service.api.openai import face as openai_face
from service.api.openai import models as openai_models
from service.api.openapi import docs, document
from service.api.problems.errors import add_handlers
from service.api.projects import audit, keys, secrets, usage, webhooks
from service.api.projects import routes as projects
from service.api.searches import actions as search_actions
from service.api.searches import figures, plots
from service.api.searches import routes as searches
from service.api.searches.plot_cache import Plots
from service.api.system import health, metrics, tasks, workers
from service.jobs import disk_space
from service.jobs.dispatch import Dispatcher
from service.jobs.submissions import Submissions
from service.settings import Settings, get_settings
from service.store.database import Database
from service.store.projects import audit as audit_log

_DESCRIPTION: Final = (
    "Fine-tune models: upload data, submit a job, watch it, download the finished model.\n\n"
    "Errors are RFC 9457 problem details with a stable `code` and a `message` to print."
)
_ROUTERS: Final = (
    jobs,
    previews,
    predictions,
    completions,
    actions,
    artifacts,
    model,
    records,
    live,
    checkpoints,
    files,
    file_checks,
    uploads,
    searches,
    search_actions,
    plots,
    tasks,
    workers,
    projects,
    keys,
    secrets,
    webhooks,
    usage,
    audit,
    fine_tuning_jobs,
    fine_tuning_history,
    openai_models,
    not_offered,
)
# Probes and scrapers may add parameters of their own.
_OPEN_ROUTERS: Final = (health, metrics, docs, login)
_OPEN_TO_ALL: Final = (
    *("/", "/redoc", "/health/", docs.PAGE_PATH, docs.ASSETS_PATH),
    *(login.LOGIN_PATH, login.SCRIPT_PATH),
    # MLflow's pages ask for a key or a session themselves.
    *(PREFIX, f"{PREFIX}/"),
)
_log = structlog.stdlib.get_logger(__name__)


def create_app(settings: Settings | None = None) -> FastAPI:
    """The ASGI app; `uvicorn --factory service.api.app:create_app` calls it without settings."""
    settings = settings or get_settings()
    logging.configure(settings)
    if settings.auth == "off":
        _log.warning("auth.off", effect="every request may do everything, without a key")
    database, dispatcher = Database(settings.sqlalchemy_url), Dispatcher(settings)
    database.before_commit = audit_log.record
    services = Services(settings, database, dispatcher, Submissions(database, dispatcher))
    counters = metrics.Metrics()
    app = FastAPI(
        title="Fine-tuning service",
        version=version("finetune-service"),
        description=_DESCRIPTION,
        lifespan=_lifespan,
        routes=_routes(),
        # A redirect would be an answer that no document declares.
        redirect_slashes=False,
        # FastAPI's own pages load their scripts from another host.
        docs_url=None,
        redoc_url=None,
    )
    app.state.services = services
    app.state.faces = (openai_face.FACE,)
    app.state.metrics = counters
    app.state.upload_slots = UploadSlots(limits.MOST_UPLOADS)
    connections = affordable(settings.max_connections)
    app.state.stream_slots = StreamSlots(connections * 3 // 4)
    app.state.feed = Feed(database, settings.workspace)
    app.state.preview_waiters = Waiters(previews.MOST_WAITING)
    app.state.prediction_waiters = Waiters(prediction_watch.MOST_WAITING)
    app.state.plots = Plots(database, figures.draw)
    app.state.key_use = KeyUse(database)
    add_handlers(app)
    # The last one added is the outermost.
    app.add_middleware(Accounting)
    app.add_middleware(
        Authentication,
        database=database,
        auth=settings.auth,
        key_use=app.state.key_use,
        open_to_all=_OPEN_TO_ALL,
    )
    app.add_middleware(RefusalLog, database=services.database)
    app.add_middleware(BodyLimit, limit=MOST_BODY_BYTES)
    if settings.cors_origins:
        app.add_middleware(CORSMiddleware, allow_origins=settings.cors_origins, **CORS)
    app.add_middleware(OtherSites, settings=settings)
    app.add_middleware(ConcurrencyLimit, most=limits.MOST_REQUESTS)
    app.add_middleware(RequestContext, metrics=counters)
    app.state.mlflow_visitors = MlflowVisitors(settings, database)
    app.state.mlflow_proxy = MlflowProxy(settings, app.state.mlflow_visitors)
    for path in (PREFIX, f"{PREFIX}/{{path:path}}"):
        app.router.routes.append(Route(path, app.state.mlflow_proxy))
    app.openapi = partial(_document, app)  # type: ignore[method-assign]
    return app


@cache
def _routes() -> list[BaseRoute]:
    """All apps of a process share them: FastAPI prepares a route once, when it is first used."""
    together = APIRouter(generate_unique_id_function=lambda route: route.name)
    for room in _ROUTERS:
        together.include_router(
            room.router, dependencies=[Depends(_admit)], responses=document.problems(422)
        )
    for room in _OPEN_ROUTERS:
        together.include_router(room.router)
    return together.routes


# One dependency for both: each makes 90 of the 3,100 function calls that a GET takes. A coroutine,
# although it awaits nothing: FastAPI runs plain functions in another thread.
async def _admit(request: Request) -> None:
    refuse_unknown(request)
    note(request)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    services: Services = app.state.services
    settings = services.settings
    for folder in (settings.files_dir, settings.uploads_dir):
        await to_thread.run_sync(upload_locks.sweep, folder)
    await to_thread.run_sync(disk_space.make_reserve, settings)
    try:
        yield
    finally:
        await app.state.mlflow_proxy.close()
        await app.state.key_use.close()
        services.dispatcher.close()
        services.database.dispose()


def _document(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        app.openapi_schema = document.build(app)
    return app.openapi_schema
