"""A job's page as the API answers with it, for tests of how it looks."""

import io
from typing import Any

from rich.console import Console


def make_job(**changes: Any) -> dict[str, Any]:
    return {
        "id": "job-1",
        "name": "my job",
        "spec": {"mode": "train", "task": {"type": "question-answering"}},
        "state": "running",
        "stage": "train",
        "phase": "training",
        "progress": {
            "step": 30,
            "of": 120,
            "percent": 25.0,
            "epoch": 0.5,
            "loss": 1.23456,
            "examples_per_second": 14.72,
            "eta_seconds": 75.2,
        },
        "queue_position": None,
        "failure": None,
        "result": None,
        "mlflow_url": None,
        "hub_url": None,
        **changes,
    }


def recorded(width: int = 160) -> Console:
    return Console(file=io.StringIO(), width=width, force_terminal=False)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()
