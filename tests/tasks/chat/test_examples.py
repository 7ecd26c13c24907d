"""The example specs of conversations and preferences, through the real stages, shortened."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.models import save_tiny_llama
from tests.tasks.examples import example_spec
from tests.tasks.stages import StagedJob


def finished(tmp_path: Path, name: str, **task: Any) -> tuple[StagedJob, Any]:
    body = example_spec(name)
    body["model"] = {"name_or_path": str(save_tiny_llama(tmp_path / "llama", positions=1024))}
    body["dataset"] |= {"max_train_samples": 40, "max_eval_samples": 4}
    body["training"] |= {"learning_rate": 5e-3}
    body["task"] |= task
    (tmp_path / "home").mkdir()
    job = StagedJob(tmp_path / "home", body)
    result, recorder = job.train()
    assert result.steps == 5
    losses = list(recorder.train_values("loss").values())
    assert min(losses[1:]) < losses[0]
    output = job.workspace / "attempts/2/output"
    assert (output / "model.safetensors").is_file(), "the adapter is merged"
    return job, result


def test_chat(tmp_path: Path) -> None:
    generate = example_spec("chat")["task"]["generate"] | {"max_new_tokens": 8, "max_samples": 2}
    job, result = finished(tmp_path, "chat", generate=generate)
    assert job.prepared is not None
    assert job.prepared.splits["train"]["examples"] == 40
    assert job.prepared.splits["train"]["features"] < 40, "they are packed"
    assert result.metrics["eval_loss"] < result.baseline["eval_loss"]
    assert result.metrics["eval_exact_match"] == 0.0
    assert result.samples[0]["expected"], "GSM8K's answers end with a number"


@pytest.mark.parametrize(
    ("name", "metric"),
    [
        ("preference", "rewards/accuracies"),
        pytest.param("reward", "accuracy", marks=pytest.mark.heavy),
    ],
)
def test_preferences(tmp_path: Path, name: str, metric: str) -> None:
    _, result = finished(tmp_path, name, max_length=1024)  # of bytes
    assert result.metric_for_best_model in (metric, f"eval_{metric}")
    assert 0 <= result.metrics[f"eval_{metric}"] <= 1
