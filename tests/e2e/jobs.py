"""Bodies of jobs, and what tests read of their pages and of their runs in MLflow."""

from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Run

from tests.e2e.stack import Stack
from tests.support.servers.services import wait_until


def job_body(stack: Stack, model: Path, squad: dict[str, Path], **changes: Any) -> dict[str, Any]:
    """A job of 8 optimizer steps on a tiny model, evaluated and saved twice."""
    body: dict[str, Any] = {
        "name": "squad-tiny",
        "task": {
            "type": "question-answering",
            "version_2_with_negative": True,
            "max_seq_length": 128,
            "doc_stride": 32,
        },
        "model": {"name_or_path": str(model)},
        "dataset": {
            "source": "upload",
            "train": stack.upload(squad["train"]),
            "validation": stack.upload(squad["validation"]),
        },
        "training": {
            "max_steps": 8,
            "learning_rate": 1e-3,
            "logging_steps": 1,
            "eval_strategy": "steps",
            "eval_steps": 4,
            "save_strategy": "steps",
            "save_steps": 4,
            "use_cpu": True,
        },
        "metadata": {"team": "e2e"},
    }
    return body | changes


def using(finished: dict[str, Any], mode: str, dataset: dict[str, Any], **model: Any) -> Any:
    """The body of a job that uses the model of a finished one as it is."""
    return {
        "mode": mode,
        "task": finished["spec"]["task"],
        "model": {"job": finished["id"], **model},
        "dataset": {"source": "upload", **dataset},
        "training": {"use_cpu": True},
    }


def ended_run(page: dict[str, Any]) -> tuple[MlflowClient, Run]:
    """The job ends first, and its run right after it."""
    uri, _, route = page["mlflow_url"].partition("?")[0].partition("/#/")
    client, run_id = MlflowClient(uri), route.split("/")[3]
    wait_until(lambda: client.get_run(run_id).info.status == "FINISHED", 30, "the run's end")
    run = client.get_run(run_id)
    assert run.info.experiment_id == route.split("/")[1]
    return client, run


def training(**changes: Any) -> dict[str, Any]:
    return {
        "max_steps": 70,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "save_steps": 5,
        "save_total_limit": 2,
        "use_cpu": True,
    } | changes


def trained_to(step: int) -> Any:
    return lambda page: page["stage"] == "train" and (page["progress"] or {}).get("step", 0) >= step


def losses(stack: Stack, job_id: str) -> list[tuple[int, float]]:
    rows = stack.pages(f"/v1/jobs/{job_id}/metrics")
    return [(row["step"], row["values"]["loss"]) for row in rows if "loss" in row["values"]]
