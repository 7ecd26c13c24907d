"""Compares a search's runs in MLflow with its trials: one parent, a child for each, each number
once. The numbers of the children are compared by chaos/checks/numbers.py."""

from collections.abc import Iterator
from typing import Any, Final

from mlflow import MlflowClient

from chaos.checks.search_checker import SearchRecord
from chaos.stack.fault_stack import FaultStack
from service.contract.search.states import TrialState
from worker.tracking.trackers import JOB_ID_TAG, PARENT_TAG, SEARCH_ID_TAG, SEARCH_RUN_TAG

_COMPLETE_SECONDS: Final = 120.0
_STATUS: Final = {"succeeded": "FINISHED", "failed": "FAILED", "cancelled": "KILLED"}


def faults(stack: FaultStack, found: SearchRecord) -> Iterator[str]:
    """Of an ended search, which minimizes `eval_loss`."""
    assert stack.mlflow_uri is not None
    client, search_id = MlflowClient(stack.mlflow_uri), found.row.id
    wanted = [_STATUS[found.row.state]] if found.trials else []
    try:
        stack.wait(lambda: _statuses(client, search_id) == wanted, _COMPLETE_SECONDS, "the run")
    except TimeoutError:
        yield f"{search_id}: its runs are {_statuses(client, search_id)}, not {wanted}"
        return
    for parent in _parents(client, search_id):
        yield from _children(client, parent.info.run_id, found)
        yield from _scores(client, parent.info.run_id, found)


def _children(client: MlflowClient, parent: str, found: SearchRecord) -> Iterator[str]:
    children = _runs(client, f"tags.`{PARENT_TAG}` = '{parent}'")
    nested = sorted(run.data.tags.get(JOB_ID_TAG, "?") for run in children)
    # A job that ended before it began has no run.
    own = sorted(job.id for job in found.jobs.values() if job.mlflow_run_id is not None)
    if nested != own:
        yield f"{found.row.id}: {len(nested)} nested runs, {len(own)} of its jobs have a run"


def _scores(client: MlflowClient, run_id: str, found: SearchRecord) -> Iterator[str]:
    complete = [trial for trial in found.trials if trial.state == TrialState.COMPLETE]
    ended = sorted(complete, key=lambda trial: trial.end_number or 0)
    scores = [float((trial.scores or [])[0]) for trial in ended]
    wanted = {
        "trial_loss": sorted(zip([trial.number for trial in ended], scores, strict=True)),
        "best_loss": [
            (trial.end_number, min(scores[: place + 1])) for place, trial in enumerate(ended)
        ],
    }
    for name, points in wanted.items():
        history = client.get_metric_history(run_id, name)
        got = sorted((point.step, point.value) for point in history)
        if got != points:
            yield f"{found.row.id}: {name} in MLflow is {got}, the trials' {points}"


def _parents(client: MlflowClient, search_id: str) -> list[Any]:
    own = f"tags.`{SEARCH_ID_TAG}` = '{search_id}' and tags.`{SEARCH_RUN_TAG}` = 'true'"
    return _runs(client, own)


def _statuses(client: MlflowClient, search_id: str) -> list[str]:
    return [run.info.status for run in _parents(client, search_id)]


def _runs(client: MlflowClient, wanted: str) -> list[Any]:
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    return list(client.search_runs(experiments, wanted))
