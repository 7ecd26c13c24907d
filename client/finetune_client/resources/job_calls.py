"""What `Jobs` and `AsyncJobs` share: the flow of each method, which either of them performs."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from finetune_client.errors import PredictionFailedError
from finetune_client.http import bodies, calls, downloads, flows
from finetune_client.http.flows import Flow, Policy
from finetune_client.tables import Table
from finetune_client.types import MetricPoint, Prediction, Preview

POLL_SECONDS = 2.0
PREDICT_SECONDS = 300.0
"""A worker that is free must load the model first."""
Rows = Sequence[Mapping[str, Any]]
Step = int | Literal["best", "last"] | None


def listing(
    state: list[str] | None,
    task: str | None,
    name: str | None,
    metadata: dict[str, str] | None,
    created_after: datetime | None,
    created_before: datetime | None,
) -> calls.Call:
    wanted = bodies.query(
        limit=calls.PAGE,
        state=state,
        task=task,
        name=name,
        metadata=metadata,
        created_after=bodies.moment(created_after),
        created_before=bodies.moment(created_before),
    )
    return calls.get("/v1/jobs", wanted)


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
    policy: Policy, spec: dict[str, Any], params: Mapping[str, Any], timeout: float
) -> Flow[Preview]:
    call = calls.preview_job(spec, params)
    found = yield from flows.finished(policy, call, "/v1/previews", timeout)
    return bodies.read(Preview, found)


def metrics_table(points: Iterable[MetricPoint], most: int) -> Table[dict[str, Any]]:
    """A row for each of the latest steps, with what was measured in training and in evaluation."""
    rows: deque[dict[str, Any]] = deque(maxlen=most)
    for point in points:
        if point.kind == "system":
            continue
        if not rows or rows[-1]["step"] != point.step:
            rows.append({"step": point.step})
        rows[-1] |= {"epoch": point.epoch, **point.values}
    columns = dict.fromkeys(name for row in rows for name in row)
    return Table(rows, tuple(columns), "metrics")
