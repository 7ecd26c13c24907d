"""The example specs of language models, through the real stages, shortened."""

from pathlib import Path
from typing import Any

from tests.support.models import save_tiny_bert, save_tiny_gpt2
from tests.tasks.examples import example_spec
from tests.tasks.stages import StagedJob


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


class TestExamples:
    def test_causal_lm(self, tmp_path: Path) -> None:
        body = example_spec("causal-lm")
        assert body["task"].pop("block_size") == 256  # the tiny model holds 64
        body["model"]["name_or_path"] = str(save_tiny_gpt2(tmp_path / "gpt2"))
        body["training"]["learning_rate"] = 1e-2
        job, _ = run(tmp_path, body)
        assert (
            len(job.predictions("test/predictions.json")) == job.prepared.splits["test"]["features"]
        )

    def test_causal_lm_with_an_adapter(self, tmp_path: Path) -> None:
        body = example_spec("causal-lm-lora")
        assert body["task"].pop("block_size") == 256
        body["model"]["name_or_path"] = str(save_tiny_gpt2(tmp_path / "gpt2"))
        body["training"]["learning_rate"] = 1e-2
        job, _ = run(tmp_path, body)
        names = {path.name for path in (job.workspace / "attempts" / "2" / "output").iterdir()}
        assert {"adapter_config.json", "adapter_model.safetensors"} <= names
        assert "model.safetensors" not in names

    def test_masked_lm(self, tmp_path: Path) -> None:
        body = example_spec("masked-lm")
        body["model"]["name_or_path"] = str(save_tiny_bert(tmp_path / "bert"))
        body["training"]["learning_rate"] = 1e-2
        job, _ = run(tmp_path, body)
        counts = {split: each["examples"] for split, each in job.prepared.splits.items()}
        assert counts == {"train": 321, "validation": 36, "test": 30}
        assert (
            len(job.predictions("test/predictions.json")) == job.prepared.splits["test"]["features"]
        )

    def test_causal_lm_from_scratch(self, tmp_path: Path) -> None:
        body = example_spec("causal-lm-from-scratch")
        body["model"]["tokenizer_name"] = str(save_tiny_gpt2(tmp_path / "gpt2"))
        run(tmp_path, body)
