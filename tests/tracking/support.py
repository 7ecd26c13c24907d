"""The expected content of a job's run, from the job's rows."""

from typing import Any

from sqlalchemy import select

from service.store.tables.jobs import MetricRow
from tests.tracking.conftest import Job

TRAINED = {
    "output_dir": "attempts/1/output",
    "steps": 20,
    "epochs": 2.0,
    "metrics": {"eval_f1": 81.25, "test_f1": 79.5, "train_runtime": 3.5},
    "baseline": {},
    "best_step": 15,
    "best_metric": 81.25,
    "model_step": 15,
    "weights_sha256": "d" * 64,
    "precision": "bf16",
}


def expected_points(job: Job) -> dict[str, list[tuple[int, float, int]]]:
    """Metric → (step, value, milliseconds), straight from the table."""
    prefixes = {"train": "", "eval": "eval_", "system": "system/"}
    points: dict[str, list[tuple[int, float, int]]] = {}
    with job.database.read() as session:
        rows = session.scalars(select(MetricRow).where(MetricRow.job_id == job.id)).all()
    for row in rows:
        values: dict[str, Any] = {}
        for name, value in row.values.items():
            prefix = prefixes[row.kind]
            values[name if name.startswith(prefix) else prefix + name] = float(value)
        if row.kind == "train" and row.progress_epoch is not None:
            values["epoch"] = row.progress_epoch
        if row.kind == "train" and "loss" in values:
            values["train/loss"] = values["loss"]  # the first chart
        for name, value in values.items():
            moment = round(row.at.timestamp() * 1000)
            points.setdefault(name, []).append((row.step, value, moment))
    return {name: sorted(found) for name, found in points.items()}


def shipped_points(job: Job) -> dict[str, list[tuple[int, float, int]]]:
    run = job.run
    return {
        name: sorted(
            (point.step, point.value, point.timestamp)
            for point in job.client.get_metric_history(run.info.run_id, name)
        )
        for name in run.data.metrics
    }


def train(job: Job, steps: range) -> None:
    for step in steps:
        job.metric("train", step, epoch=step / 10, loss=1 / (step + 1), learning_rate=step * 1e-5)
