"""GET /metrics for Prometheus: counts of requests, and the state of the jobs at scrape time."""

from collections.abc import Iterator

from fastapi import APIRouter, Request, Response
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Histogram,
    generate_latest,
)
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from service.api.dependencies import DatabaseDep, SettingsDep
from service.api.openapi import problems
from service.api.visitor import NEEDS_METRICS
from service.contract.routing import CPU_QUEUE, GPU_QUEUE
from service.contract.states import JobState
from service.store import queries
from service.store.database import Database
from service.store.scope import EVERYTHING


class Metrics:
    """Counts requests by route template, so that ids do not become labels."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ["method", "route", "status"]
        self._requests = Counter(
            "finetune_http_requests", "HTTP requests.", labels, registry=self.registry
        )
        self._seconds = Histogram(
            "finetune_http_request_seconds",
            "Time to answer.",
            labels[:2],
            registry=self.registry,
        )

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)


class _JobCollector(Collector):
    """Gauges that are read from the database at scrape time."""

    def __init__(self, database: Database, live_seconds: float) -> None:
        self.database = database
        self.live_seconds = live_seconds

    def collect(self) -> Iterator[Metric]:
        with self.database.read() as session:
            by_state = queries.count_by_state(session, EVERYTHING)
            depths = queries.queue_depths(session, EVERYTHING)
            workers = len(queries.live_workers(session, self.live_seconds))
        states = {state.value: 0 for state in JobState} | by_state
        queues = {CPU_QUEUE: 0, GPU_QUEUE: 0} | depths
        yield _gauge("finetune_jobs", "Jobs by state.", "state", states)
        yield _gauge("finetune_queue_depth", "Jobs that wait, by queue.", "queue", queues)
        yield GaugeMetricFamily("finetune_workers", "Live workers.", value=workers)


def _gauge(name: str, text: str, label: str, values: dict[str, int]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


router = APIRouter(tags=["operations"], dependencies=[NEEDS_METRICS])


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    response_class=Response,
    responses={
        200: {
            "description": "Prometheus text format.",
            "content": {CONTENT_TYPE_LATEST: {"schema": {"type": "string"}}},
        },
        **problems(401, 503),
    },
)
def get_prometheus_metrics(
    request: Request, database: DatabaseDep, settings: SettingsDep
) -> Response:
    """Requests by route and status, jobs by state, queue depths, live workers."""
    metrics: Metrics = request.app.state.metrics
    jobs = CollectorRegistry(auto_describe=False)
    jobs.register(_JobCollector(database, settings.alive_seconds))
    body = generate_latest(metrics.registry) + generate_latest(jobs)
    return Response(body, headers={"Content-Type": CONTENT_TYPE_LATEST})
