"""What MLflow holds of a job, against what the API tells of it."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Final

from mlflow import MlflowClient

from chaos.stack import FaultStack
from worker.tracking.trackers import JOB_ID_TAG

# The reconciler rings half a minute after an end that no worker has told MLflow of.
_COMPLETE_SECONDS: Final = 120.0
_PREFIX: Final = {"train": "", "eval": "eval_"}
_STATUS: Final = {"succeeded": "FINISHED", "failed": "FAILED", "cancelled": "KILLED"}


def mlflow_faults(stack: FaultStack, page: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong in MLflow with an ended job: no run or two, a status, a number lost or twice.

    A job that never had a number may have no run.
    """
    assert stack.mlflow_uri is not None
    client = MlflowClient(stack.mlflow_uri)
    told = _told(stack, page["id"])
    status = _STATUS[page["state"]]
    try:
        stack.wait(lambda: _statuses(client, page["id"]) == [status], _COMPLETE_SECONDS, "the run")
    except TimeoutError:
        found = _statuses(client, page["id"])
        if found or told:
            yield f"its runs in MLflow are {found}, the job is {page['state']}"
        return
    [run] = _runs(client, page["id"])
    for name, expected in told.items():
        points = [(p.step, p.value) for p in client.get_metric_history(run.info.run_id, name)]
        if sorted(points) != sorted(expected):
            lost, more = set(expected) - set(points), set(points) - set(expected)
            yield (
                f"{name} in MLflow: {len(points)} points, {len(expected)} told; lost "
                f"{sorted(lost)[:3]}, foreign {sorted(more)[:3]}"
            )


def _runs(client: MlflowClient, job_id: str) -> list[Any]:
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    return list(client.search_runs(experiments, f"tags.`{JOB_ID_TAG}` = '{job_id}'"))


def _statuses(client: MlflowClient, job_id: str) -> list[str]:
    return [run.info.status for run in _runs(client, job_id)]


def _told(stack: FaultStack, job_id: str) -> dict[str, list[tuple[int, float]]]:
    """Name in MLflow → points of training and of evaluations, as the API tells them."""
    told: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for row in stack.pages(f"/v1/jobs/{job_id}/metrics"):
        if row["kind"] in _PREFIX:
            for name, value in row["values"].items():
                prefix = _PREFIX[row["kind"]]
                told[prefix + name.removeprefix(prefix)].append((row["step"], float(value)))
    return told
