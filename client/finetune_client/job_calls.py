"""What `Jobs` and `AsyncJobs` share: the flow of each method, which either of them performs."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from finetune_client import bodies, calls, downloads, flows, streams
from finetune_client.errors import PredictionFailedError
from finetune_client.flows import Flow, Policy
from finetune_client.model import Model
from finetune_client.types import (
    Artifact,
    Checkpoint,
    Delivery,
    Event,
    LogPart,
    MetricPoint,
    Prediction,
    Preview,
)

POLL_SECONDS = 2.0
PREDICT_SECONDS = 300.0
"""A worker that is free must load the model first."""
Rows = Sequence[Mapping[str, Any]]
Step = int | Literal["best", "last"] | None


def listed(
    policy: Policy,
    read: Callable[[dict[str, Any]], Any],
    state: list[str] | None,
    task: str | None,
    name: str | None,
    metadata: dict[str, str] | None,
    created_after: datetime | None,
    created_before: datetime | None,
) -> Flow[None]:
    wanted = bodies.query(
        limit=calls.PAGE,
        state=state,
        task=task,
        name=name,
        metadata=metadata,
        created_after=bodies.moment(created_after),
        created_before=bodies.moment(created_before),
    )
    return flows.pages(policy, calls.get("/v1/jobs", wanted), "id", read)


def metrics(policy: Policy, job_id: str) -> Flow[None]:
    return _of_job(policy, job_id, "metrics", "seq", MetricPoint, calls.MOST_EVENTS)


def events(policy: Policy, job_id: str) -> Flow[None]:
    return _of_job(policy, job_id, "events", "seq", Event, calls.MOST_EVENTS)


def checkpoints(policy: Policy, job_id: str) -> Flow[None]:
    return _of_job(policy, job_id, "checkpoints", "step", Checkpoint, calls.PAGE)


def artifacts(policy: Policy, job_id: str) -> Flow[None]:
    return _of_job(policy, job_id, "artifacts", "name", Artifact, calls.PAGE)


def _of_job(
    policy: Policy, job_id: str, what: str, cursor: str, model: type[Model], limit: int
) -> Flow[None]:
    return _pages(policy, calls.job(job_id, what), {"limit": limit}, cursor, model)


def _pages(
    policy: Policy, path: str, params: dict[str, Any], cursor: str, model: type[Model]
) -> Flow[None]:
    return flows.pages(
        policy, calls.get(path, params), cursor, lambda item: bodies.read(model, item)
    )


def stream(policy: Policy, job_id: str, after: int, poll: float) -> Flow[None]:
    return streams.events(policy, job_id, after, poll, lambda item: bodies.read(Event, item))


def stream_logs(policy: Policy, job_id: str, offset: int, poll: float) -> Flow[None]:
    return streams.log(policy, job_id, offset, poll, lambda item: bodies.read(LogPart, item))


def deliveries(policy: Policy, path: str, state: str | None) -> Flow[None]:
    """`path` is that of a webhook's, or of a job's."""
    return _pages(policy, path, bodies.query(limit=calls.PAGE, state=state), "id", Delivery)


def download(policy: Policy, job_id: str, folder: str | Path, step: int | None) -> Flow[list[Path]]:
    if step is not None:
        return downloads.checkpoint(policy, job_id, step, Path(folder))
    return downloads.artifacts(policy, job_id, Path(folder))


def predicted(
    policy: Policy, job_id: str, rows: Rows, step: Step, timeout: float
) -> Flow[Prediction]:
    call = calls.predict(job_id, bodies.rows(rows), step, min(timeout, calls.MOST_WAIT))
    found = yield from flows.finished(policy, call, "/v1/predictions", timeout)
    prediction = bodies.read(Prediction, found)
    if failure := prediction.failure:
        raise PredictionFailedError(prediction.id, failure.code, failure.message, failure.action)
    return prediction


def previewed(
    policy: Policy, spec: dict[str, Any], rows: int, shown: int, timeout: float
) -> Flow[Preview]:
    call = calls.preview_job(spec, {"rows": rows, "shown": shown})
    found = yield from flows.finished(policy, call, "/v1/previews", timeout)
    return bodies.read(Preview, found)
