"""Adapters through the real prepare and train stages: numbers, resuming, and what is left."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file

from service.contract.failures import FailureCode
from service.contract.spec.spec import JobSpec
from service.contract.stage.events import Notice
from service.contract.stage.stages import TrainResult
from tests.support.models import save_tiny_bert, save_tiny_gpt2, save_tiny_llama, save_tiny_t5
from tests.tasks.stages import StagedJob, job_of
from tests.training.support.jobs import Recorder, fails_with
from worker.publishing import hub_repository
from worker.storage import atomic_dir
from worker.tasks import registry
from worker.training.adapters.adapter import known_warnings

pytestmark = pytest.mark.usefixtures("trainings")

SENTENCE = "the report of the water board was read by all who were there in the morning "
PROMPT = {"method": "prompt-tuning", "num_virtual_tokens": 4}
PREFIX = {"method": "prefix-tuning", "num_virtual_tokens": 4}
LORA = {"method": "lora", "lora_dropout": 0.1}

Make = Callable[..., StagedJob]


def question(number: int) -> dict[str, Any]:
    context = f"The report {number} was written by Ada in 18{number:02d}."
    start = context.index("Ada")
    return {
        "id": str(number),
        "question": f"Who wrote report {number}?",
        "context": context,
        "answers": {"text": ["Ada"], "answer_start": [start]},
    }


KINDS: dict[str, tuple[dict[str, Any], list[dict[str, Any]], Callable[[Path], Path]]] = {
    "lm": (
        {"type": "causal-lm", "block_size": 16},
        [{"text": SENTENCE * (1 + number % 3)} for number in range(30)],
        save_tiny_gpt2,
    ),
    "qa": (
        {"type": "question-answering", "max_seq_length": 48, "doc_stride": 8},
        [question(number) for number in range(24)],
        save_tiny_bert,
    ),
    "summary": (
        {"type": "summarization", "max_source_length": 32, "max_target_length": 8},
        [{"text": f"{SENTENCE}{number}", "summary": f"report {number}"} for number in range(16)],
        lambda folder: save_tiny_t5(folder, [SENTENCE, "0 1 2 3 4 5 6 7 8 9"]),
    ),
    "class": (
        {"type": "text-classification"},
        [{"text": f"{SENTENCE}{number}", "label": f"l{number % 2}"} for number in range(16)],
        save_tiny_bert,
    ),
    "tags": (
        {"type": "token-classification"},
        [{"tokens": ["Ada", "wrote", "it"], "tags": ["PER", "O", "O"]}] * 12,
        save_tiny_bert,
    ),
    "chat": (
        {"type": "chat", "packing": "bfd", "max_length": 64},
        [
            {"prompt": SENTENCE[: 20 + number % 3 * 15], "completion": f"report {number}"}
            for number in range(60)
        ],
        save_tiny_llama,
    ),
}


@pytest.fixture
def make(tmp_path: Path) -> Make:
    made = iter(range(100))

    def make_job(kind: str, adapter: dict[str, Any], **changes: Any) -> StagedJob:
        task, rows, save = KINDS[kind]
        home = tmp_path / f"home-{next(made)}"
        data = {"train": rows, "validation": rows}
        options = {"max_steps": 6, "logging_steps": 1, "learning_rate": 1e-2, "save_steps": 2}
        options |= {"bf16": False, **changes}
        return job_of(home, task, save(home / "base"), data, options, peft=adapter)

    return make_job


def losses(recorder: Recorder, after: int = 0) -> list[float]:
    return [loss for step, loss in recorder.train_values("loss").items() if step > after]


def loaded(auto: Any, job: StagedJob, result: TrainResult) -> Any:
    """The base model with the adapter on it, as a user loads them."""
    folder = job.output(result)
    config = transformers.AutoConfig.from_pretrained(folder, subfolder="base_model_config")
    base = auto.from_pretrained(job.body["model"]["name_or_path"], config=config)
    with known_warnings():
        return peft.PeftModel.from_pretrained(base, folder).eval()


def mean_loss(job: StagedJob, model: Any) -> float:
    """Of the job's rows, by the task's own arithmetic."""
    spec = JobSpec.model_validate(job.body)
    tokenizer = transformers.AutoTokenizer.from_pretrained(job.prepared.tokenizer_dir)
    splits = job.splits
    objective = registry.get(spec.task.variant()).bind(
        spec, tokenizer, model.get_base_model(), splits
    )
    batch = objective.collate(list(objective.train_features))
    with torch.no_grad():
        return float(objective.loss_sum(model, batch)) / objective.item_count(batch)


def _without(output: Any, virtual_tokens: int) -> Any:
    output["logits"] = output["logits"][:, virtual_tokens:]
    return output


class TestResume:
    @pytest.mark.parametrize(
        ("kind", "adapter", "training"),
        [
            pytest.param(
                "lm",
                LORA,
                {"gradient_accumulation_steps": 2},
                id="lora",
                marks=pytest.mark.heavy,
            ),
            pytest.param(
                "lm",
                {**LORA, "use_dora": True, "use_rslora": True, "target_modules": "all-linear"},
                {
                    "bf16": True,
                    "activation_checkpointing": True,
                    "neftune_noise_alpha": 5,
                    "label_smoothing_factor": 0.1,
                },
                id="dora, all at once",
            ),
            pytest.param("qa", {"method": "ia3"}, {}, id="ia3"),
            pytest.param("chat", LORA, {"activation_checkpointing": True}, id="chat, packed"),
            pytest.param("lm", {**PREFIX, "prefix_projection": True}, {}, id="projected prefix"),
            pytest.param("summary", PROMPT, {}, id="prompt"),
        ],
    )
    def test_is_the_uninterrupted_run_bit_for_bit(
        self, make: Make, kind: str, adapter: dict[str, Any], training: dict[str, Any]
    ) -> None:
        job = make(kind, adapter, **training)
        whole, recorder = job.train(attempt=2)
        resumed, again = job.train(attempt=3, resume_from=job.checkpoint(2))
        assert losses(again) == losses(recorder, after=2)
        assert resumed.weights_sha256 == whole.weights_sha256

    def test_a_checkpoint_holds_what_trains_and_nothing_else(self, make: Make) -> None:
        job = make("qa", {"method": "lora", "target_modules": ["query"], "r": 4}, max_steps=2)
        _, recorder = job.train()
        saved = load_file(job.checkpoint(2) / "model.safetensors")
        owners = {name.partition(".default.")[0].rpartition(".")[2] for name in saved}
        assert owners == {"lora_A", "lora_B", "modules_to_save"}
        count = sum(value.numel() for value in saved.values())
        # Two layers of 32: A and B of rank 4; a head of 2 x 32 and 2 biases.
        assert count == 2 * (4 * 32 + 32 * 4) + 2 * 32 + 2
        state = torch.load(job.checkpoint(2) / "optimizer.pt", weights_only=True)["state"]
        assert sum(each["exp_avg"].numel() for each in state.values()) == count
        notices = [event for event in recorder.of(Notice) if "trainable" in event.data]
        assert [event.data["trainable"] for event in notices] == [count]

    def test_on_other_base_weights_it_is_an_error(self, make: Make) -> None:
        job = make("lm", LORA, max_steps=2)
        job.train()
        save_tiny_gpt2(Path(job.body["model"]["name_or_path"]), seed=1)
        with fails_with(FailureCode.CHECKPOINT_UNREADABLE, "the base model's weights have changed"):
            job.train(attempt=3, resume_from=job.checkpoint(2))

    def test_the_best_checkpoint_is_the_finished_adapter(self, make: Make) -> None:
        job = make(
            "lm",
            LORA,
            load_best_model_at_end=True,
            eval_strategy="steps",
            eval_steps=1,
            save_steps=1,
            learning_rate=20.0,
            warmup_steps=6,
        )
        result, recorder = job.train()
        found = {step: values["eval_loss"] for step, values in recorder.evaluations().items()}
        best = min(range(1, 7), key=found.__getitem__)
        assert best < 6
        assert result.best_step == best
        assert result.metrics["eval_loss"] == found[best]
        kept = load_file(job.checkpoint(best) / "model.safetensors")
        file = job.output(result) / "adapter_model.safetensors"
        assert result.weights_sha256 == atomic_dir.file_sha256(file)
        saved = load_file(file)
        for name, value in saved.items():
            head, _, leaf = name.rpartition(".")
            assert torch.equal(value, kept[f"{head}.default.{leaf}"])


class TestWhatIsLeft:
    def test_the_adapter_names_the_users_model(self, make: Make) -> None:
        job = make("lm", {**LORA, "target_modules": ["c_proj", "c_attn"]}, max_steps=1)
        prepared = job.prepare()
        job.prepared = prepared.model_copy(update={"model_revision": "a" * 40})
        result, _ = job.train()
        config = json.loads((job.output(result) / "adapter_config.json").read_text())
        assert config["base_model_name_or_path"] == "base"  # of a path the last part
        assert config["revision"] == "a" * 40
        assert config["target_modules"] == ["c_attn", "c_proj"]
        assert config["task_type"] == "CAUSAL_LM"
        assert not (job.output(result) / "README.md").exists()

    @pytest.mark.parametrize(
        ("kind", "adapter", "auto"),
        [
            ("lm", LORA, transformers.AutoModelForCausalLM),
            pytest.param("lm", PROMPT, transformers.AutoModelForCausalLM, marks=pytest.mark.heavy),
            pytest.param("chat", LORA, transformers.AutoModelForCausalLM, marks=pytest.mark.heavy),
            ("chat", PROMPT, transformers.AutoModelForCausalLM),
            ("qa", PREFIX, transformers.AutoModelForQuestionAnswering),
            ("class", PROMPT, transformers.AutoModelForSequenceClassification),
            ("tags", {"method": "ia3"}, transformers.AutoModelForTokenClassification),
            ("summary", PREFIX, transformers.AutoModelForSeq2SeqLM),
        ],
    )
    def test_it_loads_on_the_base_model_and_has_its_loss(
        self, make: Make, kind: str, adapter: dict[str, Any], auto: Any
    ) -> None:
        """The adapter, and with it a head that started at random."""
        job = make(kind, adapter, max_steps=3)
        result, _ = job.train()
        model = loaded(auto, job, result)
        # Its logits begin with those of the virtual tokens.
        if adapter is PROMPT and kind in ("lm", "chat"):
            model.register_forward_hook(lambda _model, _inputs, out: _without(out, 4))
        assert mean_loss(job, model) == pytest.approx(result.metrics["eval_loss"], abs=1e-5)
        assert result.metrics["eval_loss"] != result.baseline["eval_loss"]

    def test_merged_it_is_a_whole_model_with_the_same_logits(self, make: Make) -> None:
        options = {**LORA, "r": 4, "use_rslora": True, "target_modules": "all-linear"}
        apart, whole = make("qa", options), make("qa", {**options, "merge": True})
        first, _ = apart.train()
        second, _ = whole.train()
        auto = transformers.AutoModelForQuestionAnswering
        adapted = loaded(auto, apart, first)
        merged = auto.from_pretrained(whole.output(second)).eval()
        ids = torch.arange(5, 29).reshape(2, 12)
        with torch.no_grad():
            one, other = adapted(input_ids=ids), merged(input_ids=ids)
            base = adapted.get_base_model()
            with adapted.disable_adapter():
                plain = base(input_ids=ids)
        torch.testing.assert_close(one.start_logits, other.start_logits, atol=1e-5, rtol=0)
        torch.testing.assert_close(one.end_logits, other.end_logits, atol=1e-5, rtol=0)
        assert (one.start_logits - plain.start_logits).abs().max() > 1e-2
        assert not (whole.output(second) / "adapter_config.json").exists()


class TestPushesWhileTraining:
    def test_a_checkpoint_has_what_peft_loads(self, make: Make) -> None:
        """The push of step 2 is the adapter of step 2, a projected prefix as the model sees it."""
        job = make("lm", {**PREFIX, "prefix_projection": True})
        job.body["hub"] = {"model_id": "org/m", "strategy": "every_save"}
        result, _ = job.train()
        settings = hub_repository.settings_dir(job.workspace / "attempts" / "2")
        files = hub_repository.model_files(settings, job.checkpoint(2))
        assert set(files) >= {
            "adapter_config.json",
            "adapter_model.safetensors",
            "base_model_config/config.json",
            "tokenizer.json",
        }
        assert "model.safetensors" not in files
        assert list(load_file(files["adapter_model.safetensors"])) == ["prompt_embeddings"]
        last = load_file(job.checkpoint(6) / "adapter_model.safetensors")["prompt_embeddings"]
        finished = load_file(job.output(result) / "adapter_model.safetensors")
        assert torch.equal(finished["prompt_embeddings"], last)
