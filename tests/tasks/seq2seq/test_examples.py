"""The example specs of summarization and translation, with a tiny T5 in the named model's place."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.models import save_tiny_t5
from tests.tasks.stages import StagedJob

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def example(name: str, home: Path, steps: int) -> StagedJob:
    """The example as it is, but for the model, the upload of its files and the time it takes."""
    body: dict[str, Any] = yaml.safe_load((EXAMPLES / name).read_text(encoding="utf-8"))
    files = {
        split: str((EXAMPLES / body["dataset"][split]).resolve())
        for split in ("train", "validation")
    }
    texts = Path(files["train"]).read_text(encoding="utf-8").splitlines()
    body["dataset"] |= files | {"source": "path", "max_eval_samples": 6}
    body["model"]["name_or_path"] = str(save_tiny_t5(home / "model", texts))
    body["training"] |= {"max_steps": steps, "bf16": False, "learning_rate": 1e-2}
    body["resources"] = {"gpus": 0}
    return StagedJob(home, body)


@pytest.mark.parametrize(
    ("name", "rows", "metric"),
    [
        ("summarization.yaml", (160, 6), "eval_rougeLsum"),
        ("translation.yaml", (241, 6), "eval_bleu"),
    ],
)
def test_runs(name: str, rows: tuple[int, int], metric: str, tmp_path: Path) -> None:
    job = example(name, tmp_path, steps=20)
    prepared = job.prepare()
    counts = tuple(prepared.splits[split]["examples"] for split in ("train", "validation"))
    assert counts == rows
    result, _ = job.train()
    assert result.metrics["eval_loss"] < result.baseline["eval_loss"] - 0.5
    assert metric in result.metrics
    assert {"source", "prediction", "reference"} == result.samples[0].keys()
