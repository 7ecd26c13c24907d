"""The example specs of language models, through the real stages, shortened."""

import json
from pathlib import Path
from typing import Any

import yaml

from tests.support.models import save_tiny_bert, save_tiny_gpt2
from tests.tasks.stages import StagedJob

EXAMPLES = Path(__file__).parents[3] / "examples"


def spec_of(name: str) -> dict[str, Any]:
    """The example with its files as paths, on the CPU, at most five steps."""
    body: dict[str, Any] = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    dataset = body["dataset"]
    dataset["source"] = "path"
    for split in ("train", "validation", "test"):
        if split in dataset:
            dataset[split] = str((EXAMPLES / dataset[split]).resolve())
    body["training"] |= {"max_steps": 5, "logging_steps": 1, "use_cpu": True}
    return body


def run(tmp_path: Path, body: dict[str, Any]) -> tuple[StagedJob, dict[str, float]]:
    (tmp_path / "home").mkdir()
    job = StagedJob(tmp_path / "home", body)
    result, recorder = job.train()
    assert result.steps == 5
    losses = list(recorder.train_values("loss").values())
    assert losses[-1] < losses[0]
    assert result.metrics["eval_loss"] < result.baseline["eval_loss"]
    assert set(result.baseline) >= {"eval_loss", "eval_perplexity", "eval_accuracy"}
    return job, result.metrics


def predictions(job: StagedJob) -> Any:
    folder = job.workspace / "attempts" / "2" / "predictions"
    return json.loads((folder / "test" / "predictions.json").read_text())


class TestExamples:
    def test_causal_lm(self, tmp_path: Path) -> None:
        body = spec_of("causal-lm")
        assert body["task"].pop("block_size") == 256  # the tiny model holds 64
        body["model"]["name_or_path"] = str(save_tiny_gpt2(tmp_path / "gpt2"))
        body["training"]["learning_rate"] = 1e-2
        job, _ = run(tmp_path, body)
        assert job.prepared is not None
        assert len(predictions(job)) == job.prepared.splits["test"]["features"]

    def test_causal_lm_with_an_adapter(self, tmp_path: Path) -> None:
        body = spec_of("causal-lm-lora")
        assert body["task"].pop("block_size") == 256
        body["model"]["name_or_path"] = str(save_tiny_gpt2(tmp_path / "gpt2"))
        body["training"]["learning_rate"] = 1e-2
        job, _ = run(tmp_path, body)
        names = {path.name for path in (job.workspace / "attempts" / "2" / "output").iterdir()}
        assert {"adapter_config.json", "adapter_model.safetensors"} <= names
        assert "model.safetensors" not in names

    def test_masked_lm(self, tmp_path: Path) -> None:
        body = spec_of("masked-lm")
        body["model"]["name_or_path"] = str(save_tiny_bert(tmp_path / "bert"))
        body["training"]["learning_rate"] = 1e-2
        job, _ = run(tmp_path, body)
        assert job.prepared is not None
        counts = {split: each["examples"] for split, each in job.prepared.splits.items()}
        assert counts == {"train": 321, "validation": 36, "test": 30}
        assert len(predictions(job)) == job.prepared.splits["test"]["features"]

    def test_causal_lm_from_scratch(self, tmp_path: Path) -> None:
        body = spec_of("causal-lm-from-scratch")
        body["model"]["tokenizer_name"] = str(save_tiny_gpt2(tmp_path / "gpt2"))
        run(tmp_path, body)
