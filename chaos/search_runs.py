"""Compares a search's runs in MLflow with its trials."""

from collections.abc import Iterator
from typing import Any, Final

from mlflow import MlflowClient

from chaos.search_checker import Recorded
from chaos.stack import FaultStack
from worker.tracking.trackers import JOB_ID_TAG

SEARCH_TAG: Final = "finetune.search_id"
_PARENT_TAG: Final = "mlflow.parentRunId"
_COMPLETE_SECONDS: Final = 120.0
_STATUS: Final = {"succeeded": "FINISHED", "failed": "FAILED", "cancelled": "KILLED"}


def faults(stack: FaultStack, found: Recorded) -> Iterator[str]:
    """Of an ended search: no parent run or two, children without it, foreign or missing ones.

    The numbers of each child are checked by chaos/numbers.py.
    """
    if not has_parents():
        return
    assert stack.mlflow_uri is not None
    client, search_id = MlflowClient(stack.mlflow_uri), found.row.id
    wanted = [_STATUS[found.row.state]]
    try:
        stack.wait(lambda: _statuses(client, search_id) == wanted, _COMPLETE_SECONDS, "the run")
    except TimeoutError:
        yield f"{search_id}: its parent runs are {_statuses(client, search_id)}, not {wanted}"
        return
    [parent] = _parents(client, search_id)
    children = _runs(client, f"tags.`{_PARENT_TAG}` = '{parent.info.run_id}'")
    theirs = sorted(run.data.tags.get(JOB_ID_TAG, "?") for run in children)
    # A job that never ran has no run.
    trained = sorted(job.id for job in found.jobs.values() if job.mlflow_run_id is not None)
    if theirs != trained:
        yield f"{search_id}: {len(theirs)} nested runs, {len(trained)} of its jobs have one"


def has_parents() -> bool:
    """Whether this version of the service makes a run for each search."""
    from worker.tracking import trackers

    return hasattr(trackers, "SEARCH_ID_TAG")


def _parents(client: MlflowClient, search_id: str) -> list[Any]:
    found = _runs(client, f"tags.`{SEARCH_TAG}` = '{search_id}'")
    return [run for run in found if _PARENT_TAG not in run.data.tags]


def _statuses(client: MlflowClient, search_id: str) -> list[str]:
    return [run.info.status for run in _parents(client, search_id)]


def _runs(client: MlflowClient, wanted: str) -> list[Any]:
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    return list(client.search_runs(experiments, wanted))
