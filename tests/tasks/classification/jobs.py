"""Small jobs of the two classification tasks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from service.contract.stage.stages import TrainResult
from tests.support.models import save_tiny_bert
from tests.tasks.stages import StagedJob, job_of
from tests.training.support.jobs import PLAIN, scores

MakeJob = Callable[..., StagedJob]


def maker(home: Path, kind: str, **base: Any) -> MakeJob:
    """Makes jobs of `rows` of each split, or a file; the rest is the training section. `base`:
    options of the model."""

    def make(
        rows: dict[str, Any],
        task: dict[str, Any] | None = None,
        model: Path | None = None,
        dropout: float = 0.1,
        **training: Any,
    ) -> StagedJob:
        model = model or save_tiny_bert(home / "model", dropout=dropout, **base)
        given = {name: part if isinstance(part, list) else str(part) for name, part in rows.items()}
        options = PLAIN | {"logging_steps": 1, "max_steps": 2, "save_strategy": "no"}
        return job_of(home, {"type": kind, **(task or {})}, model, given, options | training)

    return make


def evaluations(result: TrainResult) -> dict[str, float]:
    return {f"eval_{name}": value for name, value in scores(result.metrics).items()}
