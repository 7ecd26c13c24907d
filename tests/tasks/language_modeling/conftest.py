"""Jobs of causal-lm on a small corpus."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.models import save_tiny_gpt2
from tests.tasks.stages import StagedJob, job_of
from tests.training.support.jobs import PLAIN

TEXTS = [
    "the report of the water board was read\n",
    "\n",
    "all who were there in the morning read the report of the board\n",
    "it was read by the board in the morning\n",
] * 12

Make = Callable[..., StagedJob]


@pytest.fixture
def gpt2(tmp_path: Path) -> Path:
    return save_tiny_gpt2(tmp_path / "gpt2", dropout=0.0)


@pytest.fixture
def make(tmp_path: Path, gpt2: Path) -> Make:
    made = iter(range(100))

    def make_job(
        texts: list[str] = TEXTS,
        dataset: dict[str, Any] | None = None,
        training: dict[str, Any] | None = None,
        model: Path = gpt2,
        **task: Any,
    ) -> StagedJob:
        home = tmp_path / f"home-{next(made)}"
        data = {"train": [{"text": text} for text in texts], **(dataset or {})}
        options = PLAIN | {"logging_steps": 1, "learning_rate": 1e-2} | (training or {})
        return job_of(home, {"type": "causal-lm", **task}, model, data, options)

    return make_job
