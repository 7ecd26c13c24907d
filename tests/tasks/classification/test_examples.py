"""The example specs of classification, through the real stages, shortened."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from service.contract import splits
from service.contract.spec import JobSpec
from tests.support.models import save_tiny_bert
from tests.tasks.stages import StagedJob

EXAMPLES = Path(__file__).parents[3] / "examples"


def as_paths(value: Any) -> Any:
    """`./files` where they lie."""
    if isinstance(value, dict):
        return {name: as_paths(item) for name, item in value.items()}
    return str((EXAMPLES / value).resolve()) if str(value).startswith("./") else value


def job_of(name: str, home: Path) -> StagedJob:
    """The example on the CPU, with a tiny model, for one epoch."""
    body: dict[str, Any] = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    body["dataset"] = as_paths(body["dataset"]) | {"source": "path"}
    home.mkdir()
    body["model"]["name_or_path"] = str(save_tiny_bert(home / "model"))
    changes = {"num_train_epochs": 1, "bf16": False, "use_cpu": True, "learning_rate": 1e-2}
    body["training"] |= changes
    return StagedJob(home, body)


def test_text_classification(tmp_path: Path) -> None:
    job = job_of("text-classification", tmp_path / "home")
    # Torch's own dropout: with other numbers so small a model may learn nothing in an epoch.
    job.body["training"]["padding_free"] = False
    result, _ = job.train()
    counts = {split: each["examples"] for split, each in job.prepared.splits.items()}
    assert counts == {"train": 360, "validation.short": 92, "validation.long": 28, "test": 40}
    for name in ("eval_short", "eval_long"):
        assert result.metrics[f"{name}_loss"] < result.baseline[f"{name}_loss"]
        assert 0 <= result.metrics[f"{name}_accuracy"] <= 1
    assert result.best_step == 23
    topics = {"European Union law", "Huguenot", "Warsaw", "Yuan dynasty"}
    assert {row["label"] for row in job.predictions("validation.short/predictions.json")} == topics
    assert {row["prediction"] for row in job.predictions("test/predictions.json")} <= topics
    # And `predict.yaml` on the model that this gives.
    predicting = job_of("predict", tmp_path / "predict")
    assert result.output_dir is not None
    predicting.body["model"] = {"name_or_path": str(job.output(result))}
    predicting.train()
    for one, other in zip(
        predicting.predictions("test/predictions.json"),
        job.predictions("test/predictions.json"),
        strict=True,
    ):
        assert one["prediction"] == other["prediction"]
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-5)


def test_evaluate(tmp_path: Path) -> None:
    body = job_of("evaluate", tmp_path / "home").body
    body["model"] = {"job": "job-0"}
    spec = JobSpec.model_validate(body)
    assert list(splits.used(spec)) == ["validation"]


def test_token_classification(tmp_path: Path) -> None:
    job = job_of("token-classification", tmp_path / "home")
    result, _ = job.train()
    counts = {split: each["examples"] for split, each in job.prepared.splits.items()}
    assert counts == {"train": 295, "validation": 100, "test": 20}
    assert result.metrics["eval_loss"] < result.baseline["eval_loss"]
    assert result.metrics["eval_ANSWER_number"] == 125
    assert len(job.predictions("predictions.json")) == 100
    for row in job.predictions("test/predictions.json"):
        assert len(row["prediction"]) == len(row["tokens"])
