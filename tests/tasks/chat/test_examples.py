"""The example specs of conversations and preferences, through the real stages, shortened."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support.models import save_tiny_llama
from tests.tasks.examples import example_spec
from tests.tasks.stages import StagedJob


def finished(
    tmp_path: Path, name: str, changes: dict[str, Any] | None = None, **task: Any
) -> tuple[StagedJob, Any]:
    """`changes`: other sections of the spec."""
    body = example_spec(name)
    for section, options in (changes or {}).items():
        body[section] |= options
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
    name = "model" if body["peft"].get("merge") else "adapter_model"
    assert (job.workspace / f"attempts/2/output/{name}.safetensors").is_file()
    return job, result


def test_chat(tmp_path: Path) -> None:
    generate = example_spec("chat")["task"]["generate"] | {"max_new_tokens": 8, "max_samples": 2}
    job, result = finished(tmp_path, "chat", generate=generate)
    assert job.prepared.splits["train"]["examples"] == 40
    assert job.prepared.splits["train"]["features"] < 40, "they are packed"
    assert result.metrics["eval_loss"] < result.baseline["eval_loss"]
    assert result.metrics["eval_exact_match"] == 0.0
    assert result.samples[0]["expected"], "GSM8K's answers end with a number"


@pytest.mark.heavy
@pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="needs bitsandbytes")
def test_qlora_with_the_bits_of_a_cpu(tmp_path: Path) -> None:
    on_cpu = {
        "peft": {"quantization": {"bits": 8}},
        "training": {"optim": "adamw_torch"},
        "resources": {"gpus": 0},
    }
    _, result = finished(tmp_path, "chat-qlora", on_cpu)
    assert result.metrics["eval_loss"] < result.baseline["eval_loss"]


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
