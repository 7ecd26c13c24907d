"""Compares a job's numbers in MLflow with those of the API."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Final

from mlflow import MlflowClient

from chaos.stack.fault_stack import FaultStack
from worker.tracking.trackers import JOB_ID_TAG

# After half a minute the reconciler enqueues ended jobs that MLflow does not know yet.
_COMPLETE_SECONDS: Final = 120.0
_PREFIX: Final = {"train": "", "eval": "eval_"}
_STATUS: Final = {"succeeded": "FINISHED", "failed": "FAILED", "cancelled": "KILLED"}


def mlflow_faults(stack: FaultStack, page: Mapping[str, Any]) -> Iterator[str]:
    """The faults of an ended job in MLflow: no run or two, a wrong status, numbers lost or twice.

    A job without numbers may have no run.
    """
    assert stack.mlflow_uri is not None
    client = MlflowClient(stack.mlflow_uri)
    expected = _expected(stack, page["id"])
    status = _STATUS[page["state"]]
    try:
        stack.wait(lambda: _statuses(client, page["id"]) == [status], _COMPLETE_SECONDS, "the run")
    except TimeoutError:
        found = _statuses(client, page["id"])
        if found or expected:
            yield f"its runs in MLflow are {found}, the job is {page['state']}"
        return
    [run] = _runs(client, page["id"])
    for name, wanted in expected.items():
        points = [(p.step, p.value) for p in client.get_metric_history(run.info.run_id, name)]
        if sorted(points) != sorted(wanted):
            lost, more = set(wanted) - set(points), set(points) - set(wanted)
            yield (
                f"{name} in MLflow: {len(points)} points, {len(wanted)} expected; lost "
                f"{sorted(lost)[:3]}, foreign {sorted(more)[:3]}"
            )


def _runs(client: MlflowClient, job_id: str) -> list[Any]:
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    return list(client.search_runs(experiments, f"tags.`{JOB_ID_TAG}` = '{job_id}'"))


def _statuses(client: MlflowClient, job_id: str) -> list[str]:
    return [run.info.status for run in _runs(client, job_id)]


def _expected(stack: FaultStack, job_id: str) -> dict[str, list[tuple[int, float]]]:
    """Name in MLflow → points of training and evaluations, as the API returns them."""
    points: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for row in stack.pages(f"/v1/jobs/{job_id}/metrics"):
        if row["kind"] in _PREFIX:
            for name, value in row["values"].items():
                prefix = _PREFIX[row["kind"]]
                points[prefix + name.removeprefix(prefix)].append((row["step"], float(value)))
    return points
