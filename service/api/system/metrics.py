"""GET /metrics for Prometheus: counts of requests, and the state of the jobs at scrape time."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

import prometheus_client
from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Histogram, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from service.api.http.dependencies import DatabaseDep, SettingsDep
from service.api.http.principal import NEEDS_METRICS
from service.api.openapi.document import problems
from service.contract.failures import RULES
from service.contract.routing import CPU_QUEUE, GPU_QUEUE
from service.contract.states import ENDED, JobState
from service.store.database import Database
from service.store.interactive import predictions, previews
from service.store.jobs import counts, queries
from service.store.projects import projects
from service.store.scheduling import fair_shares
from service.store.scope import EVERYTHING

MOST_PROJECTS: Final = 100
"""With labels of their own: each has a series for every state."""
OTHER_PROJECTS: Final = "(other)"
"""No project can be called so."""


_LACKS: Final = "Jobs that wait because their worker's machine lacks something, by code."


class Metrics:
    """Counts requests by route template, so that ids do not become labels."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ["method", "route", "status"]
        self._requests = prometheus_client.Counter(
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
            jobs = counts.by_project(session, EVERYTHING)
            depths = counts.queue_depths(session, EVERYTHING)
            lacking = counts.waiting_for_host(session, EVERYTHING)
            unfinished = previews.REQUESTS.unfinished(session, EVERYTHING)
            asked = predictions.REQUESTS.unfinished(session, EVERYTHING)
            workers = len(queries.live_workers(session, self.live_seconds))
            gpus = fair_shares.gpus_in_use(session.connection())
            names = {row.id: row.name for row in projects.list_all(session, EVERYTHING)}
        states = {state.value: 0 for state in JobState} | sum(jobs.values(), Counter[str]())
        lacks = {code.value: 0 for code, rule in RULES.items() if rule.is_lack}
        queues = {CPU_QUEUE: 0, GPU_QUEUE: 0} | depths
        yield _gauge("finetune_jobs", "Jobs by state.", "state", states)
        yield _gauge("finetune_queue_depth", "Jobs that wait, by queue.", "queue", queues)
        yield _gauge("finetune_jobs_waiting_for_host", _LACKS, "code", lacks | lacking)
        yield _gauge("finetune_previews", "Unfinished previews by state.", "state", unfinished)
        yield _gauge("finetune_predictions", "Unfinished predictions by state.", "state", asked)
        yield GaugeMetricFamily("finetune_workers", "Live workers.", value=workers)
        labels = _labels(names, jobs)
        yield _jobs_by_project(jobs, labels)
        yield _gpus_by_project(gpus, labels)


def _labels(names: dict[str, str], jobs: dict[str, Counter[str]]) -> dict[str, str]:
    """Id of a project → its label. Those with the most jobs that have not ended have their own."""
    unfinished = {
        project: sum(count for state, count in states.items() if state not in ENDED)
        for project, states in jobs.items()
    }
    busy = sorted(names, key=lambda each: (-unfinished.get(each, 0), names[each]))
    own = busy[:MOST_PROJECTS]
    return dict.fromkeys(names, OTHER_PROJECTS) | {each: names[each] for each in own}


def _jobs_by_project(jobs: dict[str, Counter[str]], labels: dict[str, str]) -> Metric:
    family = GaugeMetricFamily(
        "finetune_project_jobs", "Jobs by project and state.", labels=["project", "state"]
    )
    found: dict[str, Counter[str]] = {label: Counter() for label in labels.values()}
    for project, states in jobs.items():
        found[labels[project]] += states
    for label, states in found.items():
        for state in JobState:
            family.add_metric([label, state.value], states[state.value])
    return family


def _gpus_by_project(gpus: dict[str, int], labels: dict[str, str]) -> Metric:
    found = dict.fromkeys(labels.values(), 0)
    for project, count in gpus.items():
        found[labels[project]] += count
    text = "GPUs that running stages of the project have."
    return _gauge("finetune_project_gpus", text, "project", found)


def _gauge(name: str, text: str, label: str, values: Mapping[str, int]) -> Metric:
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
    """Requests by route and status, jobs by state and by project, queue depths, unfinished
    previews and predictions, live workers."""
    metrics: Metrics = request.app.state.metrics
    jobs = CollectorRegistry(auto_describe=False)
    jobs.register(_JobCollector(database, settings.alive_seconds))
    body = generate_latest(metrics.registry) + generate_latest(jobs)
    return Response(body, headers={"Content-Type": CONTENT_TYPE_LATEST})
