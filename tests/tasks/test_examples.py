"""The specs of `examples/` through the real stages, shortened, with a tiny model in the named one's
place."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.contract.spec import splits
from service.contract.spec.spec import JobSpec
from service.contract.stage.events import CheckpointSaved, Notice
from service.contract.stage.stages import TrainResult
from tests.support.models import save_tiny_bert, save_tiny_gpt2, save_tiny_llama, save_tiny_t5
from tests.tasks.stages import StagedJob
from tests.training.support.jobs import Recorder

pytestmark = pytest.mark.usefixtures("trainings")

EXAMPLES = Path(__file__).parents[2] / "examples"


def as_paths(value: Any) -> Any:
    """`./files` where they lie."""
    if isinstance(value, dict):
        return {name: as_paths(item) for name, item in value.items()}
    return str((EXAMPLES / value).resolve()) if str(value).startswith("./") else value


def example(home: Path, name: str, **training: Any) -> StagedJob:
    """On the CPU, for five steps by default."""
    body: dict[str, Any] = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text(encoding="utf-8"))
    body["dataset"] = as_paths(body["dataset"]) | {"source": "path"}
    options = {"max_steps": 5, "logging_steps": 1, "learning_rate": 1e-2, "use_cpu": True}
    body["training"] |= options | training
    home.mkdir()
    return StagedJob(home, body)


def counts(job: StagedJob) -> dict[str, int]:
    return {split: each["examples"] for split, each in job.prepared.splits.items()}


def learned(job: StagedJob) -> tuple[TrainResult, Recorder]:
    """In five steps."""
    result, recorder = job.train()
    assert result.steps == 5
    losses = list(recorder.train_values("loss").values())
    assert min(losses[1:]) < losses[0]
    return result, recorder


class TestClassification:
    def job(self, name: str, home: Path, **training: Any) -> StagedJob:
        """For one epoch."""
        training = {"max_steps": -1, "num_train_epochs": 1, "bf16": False, **training}
        job = example(home, name, **training)
        base = save_tiny_bert(home / "model", tokens=30_522)
        job.body["model"]["name_or_path"] = str(base)
        return job

    def test_of_texts(self, tmp_path: Path) -> None:
        # Torch's own dropout: with other numbers so small a model may learn nothing in an epoch.
        job = self.job("text-classification", tmp_path / "home", padding_free=False)
        result, _ = job.train()
        assert counts(job) == {
            "train": 360,
            "validation.short": 92,
            "validation.long": 28,
            "test": 40,
        }
        for name in ("eval_short", "eval_long"):
            assert result.metrics[f"{name}_loss"] < result.baseline[f"{name}_loss"]
            assert 0 <= result.metrics[f"{name}_accuracy"] <= 1
        assert result.best_step == 23
        topics = {"European Union law", "Huguenot", "Warsaw", "Yuan dynasty"}
        validated = job.predictions("validation.short/predictions.json")
        assert {row["label"] for row in validated} == topics
        expected = job.predictions("test/predictions.json")
        assert {row["prediction"] for row in expected} <= topics
        # And `predict.yaml` on the model that this gives.
        predicting = self.job("predict", tmp_path / "predict")
        predicting.body["model"] = {"name_or_path": str(job.output(result))}
        predicting.train()
        found = predicting.predictions("test/predictions.json")
        for one, other in zip(found, expected, strict=True):
            assert one["prediction"] == other["prediction"]
            assert one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-5)

    def test_evaluate(self, tmp_path: Path) -> None:
        spec = JobSpec.model_validate(example(tmp_path / "home", "evaluate").body)
        assert list(splits.used(spec)) == ["validation"]

    def test_of_tokens(self, tmp_path: Path) -> None:
        job = self.job("token-classification", tmp_path / "home")
        result, _ = job.train()
        assert counts(job) == {"train": 295, "validation": 100, "test": 20}
        assert result.metrics["eval_loss"] < result.baseline["eval_loss"]
        assert result.metrics["eval_ANSWER_number"] == 125
        assert len(job.predictions("predictions.json")) == 100
        for row in job.predictions("test/predictions.json"):
            assert len(row["prediction"]) == len(row["tokens"])


class TestLanguageModels:
    @pytest.mark.parametrize(
        "name",
        [
            *("causal-lm-lora", "masked-lm"),
            *(
                pytest.param(name, marks=pytest.mark.heavy)
                for name in ("causal-lm", "causal-lm-from-scratch")
            ),
        ],
    )
    def test_learn(self, tmp_path: Path, name: str) -> None:
        job = example(tmp_path / "home", name)
        save = save_tiny_bert if name == "masked-lm" else save_tiny_gpt2
        place = "tokenizer_name" if name.endswith("scratch") else "name_or_path"
        job.body["model"][place] = str(save(tmp_path / "model"))
        if name in ("causal-lm", "causal-lm-lora"):
            assert job.body["task"].pop("block_size") == 256  # the tiny model holds 64
        result, recorder = learned(job)
        losses = recorder.train_values("loss")
        assert losses[5] < losses[1]
        assert result.metrics["eval_loss"] < result.baseline["eval_loss"]
        assert set(result.baseline) >= {"eval_loss", "eval_perplexity", "eval_accuracy"}
        if name in ("causal-lm", "masked-lm"):
            tested = job.predictions("test/predictions.json")
            assert len(tested) == job.prepared.splits["test"]["features"]
        if name == "masked-lm":
            assert counts(job) == {"train": 321, "validation": 36, "test": 30}
        names = {path.name for path in job.output(result).iterdir()}
        adapter = {"adapter_config.json", "adapter_model.safetensors"}
        assert names >= (adapter if name.endswith("lora") else {"model.safetensors"})
        assert ("model.safetensors" in names) is not name.endswith("lora")

    @pytest.mark.heavy
    @pytest.mark.usefixtures("processes")
    def test_all_options_together(self, tmp_path: Path) -> None:
        options = {"num_train_epochs": 2, "max_steps": -1, "learning_rate": 1e-3}
        job = example(tmp_path / "home", "training-options", **options)
        assert job.body["task"].pop("block_size") == 256
        job.body["model"]["name_or_path"] = str(save_tiny_gpt2(tmp_path / "gpt2"))
        job.body["dataset"] |= {"max_train_samples": 150, "max_eval_samples": 15}
        result, recorder = job.train()
        losses = recorder.train_values("loss")
        assert losses[result.steps] < losses[1]
        assert result.metrics["eval_loss"] < result.baseline["eval_loss"]
        assert recorder.train_values("num_input_tokens_seen")[1] == 16 * 64
        rates: dict[int, Any] = {**recorder.train_values("learning_rate")}
        assert (rates[1], rates[3]) == (0.0, pytest.approx(1e-3))
        assert rates[result.steps] < rates[3]
        assert len(recorder.of(CheckpointSaved)) == 2


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("name", "rows", "metric"),
    [
        ("summarization", {"train": 160, "validation": 6}, "eval_rougeLsum"),
        ("translation", {"train": 241, "validation": 6}, "eval_bleu"),
    ],
)
def test_texts_from_texts(name: str, rows: dict[str, int], metric: str, tmp_path: Path) -> None:
    job = example(tmp_path / "home", name, max_steps=20, bf16=False)
    job.body["dataset"]["max_eval_samples"] = 6
    texts = Path(job.body["dataset"]["train"]).read_text(encoding="utf-8").splitlines()
    job.body["model"]["name_or_path"] = str(save_tiny_t5(tmp_path / "model", texts))
    result, _ = job.train()
    assert counts(job) == rows
    assert result.metrics["eval_loss"] < result.baseline["eval_loss"] - 0.5
    assert metric in result.metrics
    assert {"source", "prediction", "reference"} == result.samples[0].keys()


def test_question_answering_with_an_adapter(tmp_path: Path) -> None:
    job = example(tmp_path / "home", "question-answering-lora", per_device_train_batch_size=4)
    job.body["dataset"] |= {"max_train_samples": 24, "max_eval_samples": 8}
    job.body["model"]["name_or_path"] = str(save_tiny_bert(tmp_path / "base", tokens=30_522))
    result, recorder = job.train()
    assert result.steps == 5
    assert result.metrics["eval_loss"] < result.baseline["eval_loss"]
    (notice,) = [event for event in recorder.of(Notice) if "trainable" in event.data]
    assert notice.data["trainable"] < notice.data["parameters"] / 50


class TestConversations:
    def job(self, tmp_path: Path, name: str, **task: Any) -> StagedJob:
        job = example(tmp_path / "home", name, learning_rate=5e-3)
        model = save_tiny_llama(tmp_path / "llama", positions=1024)
        job.body["model"] = {"name_or_path": str(model)}
        job.body["dataset"] |= {"max_train_samples": 40, "max_eval_samples": 4}
        job.body["task"] |= task
        return job

    def finished(self, job: StagedJob) -> TrainResult:
        result, _ = learned(job)
        name = "model" if job.body["peft"].get("merge") else "adapter_model"
        assert (job.output(result) / f"{name}.safetensors").is_file()
        return result

    def test_chat(self, tmp_path: Path) -> None:
        job = self.job(tmp_path, "chat")
        job.body["task"]["generate"] |= {"max_new_tokens": 8, "max_samples": 2}
        result = self.finished(job)
        assert job.prepared.splits["train"]["examples"] == 40
        assert job.prepared.splits["train"]["features"] < 40, "they are packed"
        assert result.metrics["eval_loss"] < result.baseline["eval_loss"]
        assert result.metrics["eval_exact_match"] == 0.0
        assert result.samples[0]["expected"], "GSM8K's answers end with a number"

    @pytest.mark.heavy
    @pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="needs bitsandbytes")
    def test_qlora_with_the_bits_of_a_cpu(self, tmp_path: Path) -> None:
        job = self.job(tmp_path, "chat-qlora")
        job.body["peft"] |= {"quantization": {"bits": 8}}
        job.body["training"] |= {"optim": "adamw_torch"}
        job.body["resources"] |= {"gpus": 0}
        result = self.finished(job)
        assert result.metrics["eval_loss"] < result.baseline["eval_loss"]

    @pytest.mark.heavy  # `test_chat` is run each time
    @pytest.mark.parametrize(
        ("name", "metric"), [("preference", "rewards/accuracies"), ("reward", "accuracy")]
    )
    def test_preferences(self, tmp_path: Path, name: str, metric: str) -> None:
        result = self.finished(self.job(tmp_path, name, max_length=1024))  # of bytes
        assert result.metric_for_best_model in (metric, f"eval_{metric}")
        assert 0 <= result.metrics[f"eval_{metric}"] <= 1
