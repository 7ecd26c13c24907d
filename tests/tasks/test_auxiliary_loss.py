"""Losses that a model's own forward adds to its cross entropy, as of experts: trained on and
reported as by transformers' Trainer."""

import math
import operator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from benchmarks import model_losses
from tests.support import every_model
from tests.support.models import save_tiny_llama, save_tiny_t5
from tests.tasks.preference import support as preference
from tests.tasks.stages import StagedJob, job_of, write_rows
from tests.training.support.reference_trainer import arguments

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": None,
}
COEFFICIENT = 0.5
WORDS = ["the", "report", "of", "the", "water", "board", "was", "read"]
WORDS += ["by", "all", "in", "the", "morning"]
BATCH = 4
TRAINING: dict[str, Any] = {
    "max_steps": 3,
    "per_device_train_batch_size": BATCH,
    "per_device_eval_batch_size": BATCH,
    "learning_rate": 1e-3,
    "lr_scheduler_type": "constant",
    "train_sampling_strategy": "sequential",
    "optim": "adamw_torch",
    "logging_steps": 1,
    "seed": 1,
}


def save_experts(folder: Path, **options: Any) -> Path:
    """A Mixtral whose config asks for the loss."""
    save_tiny_llama(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    transformers.set_seed(0)
    config = transformers.MixtralConfig(
        **SIZES,
        vocab_size=len(tokenizer),
        num_local_experts=4,
        **{"output_router_logits": True, "router_aux_loss_coef": COEFFICIENT, **options},
    )
    model = transformers.MixtralForCausalLM(config)
    for name, weight in model.named_parameters():
        if name.endswith("gate.weight"):  # so that it chooses, and not nearly evenly
            torch.nn.init.normal_(weight)
    model.save_pretrained(folder)
    return folder


def conversation(number: int) -> dict[str, Any]:
    """Of uneven lengths."""
    words = [WORDS[(number * 3 + place) % len(WORDS)] for place in range(3 + number * 5 % 17)]
    return {
        "messages": [
            {"role": "user", "content": f"who read report {number}?"},
            {"role": "assistant", "content": " ".join(words)},
        ]
    }


def chat_job(folder: Path, model: Path | None = None, **training: Any) -> StagedJob:
    model = model or save_experts(folder / "model")
    dataset = {
        "train": [conversation(number) for number in range(16)],
        "validation": [conversation(number) for number in range(20, 20 + BATCH)],
    }
    options = {**TRAINING, "precision": "fp32", **training}
    return job_of(folder, {"type": "chat", "train_on": "all"}, model, dataset, options)


def _collate(features: list[Any]) -> dict[str, torch.Tensor]:
    pad = torch.nn.utils.rnn.pad_sequence
    rows = [torch.tensor(each["input_ids"]) for each in features]
    trained = pad([torch.tensor(each["trained"]) for each in features], batch_first=True)
    ids = pad(rows, batch_first=True)
    mask = pad([torch.ones_like(row) for row in rows], batch_first=True)
    labels = ids.masked_fill(trained == 0, -100)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def trainer(job: StagedJob, folder: Path, **options: Any) -> tuple[Any, list[dict[str, Any]]]:
    """transformers' Trainer on the features of a prepared job: its model and its log."""
    prepared = job.splits
    model = transformers.AutoModelForCausalLM.from_pretrained(job.body["model"]["name_or_path"])
    made = transformers.Trainer(
        model=model,
        args=arguments(
            folder,
            save_strategy="no",
            eval_on_start=True,
            eval_strategy="steps",
            eval_steps=3,
            remove_unused_columns=False,
            **{**TRAINING, **options},
        ),
        data_collator=_collate,
        train_dataset=prepared["train"].features,
        eval_dataset=longest_first(prepared["validation"].features),
    )
    made.train()
    return model, made.state.log_history


def longest_first(features: Any) -> list[Any]:
    """As our evaluations do, because the loss depends on which rows share a batch."""
    return sorted(features, key=lambda each: -len(each["input_ids"]))


def column(log: list[dict[str, Any]], name: str) -> list[float]:
    return [entry[name] for entry in log if name in entry]


def own_loss(model: Any, features: list[Any]) -> float:
    """The model's own loss of a batch, which Trainer trains on."""
    with torch.no_grad():
        return float(model(**_collate(features)).loss)


def labels(features: list[Any]) -> int:
    return int((_collate(features)["labels"][:, 1:] != -100).sum())


class TestAgainstTheTrainer:
    @pytest.mark.parametrize("padding_free", [None, False])
    def test_losses_and_weights(self, tmp_path: Path, padding_free: bool | None) -> None:
        job = chat_job(tmp_path, padding_free=padding_free)
        result, ours = job.train()
        model, log = trainer(job, tmp_path / "trainer")
        losses = list(ours.train_values("loss").values())
        assert losses == pytest.approx(column(log, "loss"), abs=1e-5)
        added = ours.train_values("aux_loss")[1]
        assert (losses[0], added) == pytest.approx((6.758356, 1.022216), abs=1e-4)
        evaluations = list(ours.evaluations().values())
        found = [each["eval_loss"] for each in evaluations]
        assert found == pytest.approx(column(log, "eval_loss"), abs=1e-5)
        # Of the text alone, so that models compare.
        entropies = [each["eval_loss"] - each["eval_aux_loss"] for each in evaluations]
        perplexities = [each["eval_perplexity"] for each in evaluations]
        assert perplexities == pytest.approx([math.exp(each) for each in entropies])
        saved = transformers.AutoModelForCausalLM.from_pretrained(job.output(result))
        for name, weight in model.state_dict().items():
            assert torch.allclose(saved.state_dict()[name], weight, atol=1e-5), name

    def test_batches_are_computed_without_padding(self, tmp_path: Path) -> None:
        """Without filler, which the routers' statistics would count."""
        job = chat_job(tmp_path, padding_free=True)
        _, ours = job.train()
        assert len(ours.train_values("aux_loss")) == 3

    def test_coefficients_of_0_add_nothing(self, tmp_path: Path) -> None:
        model = save_experts(tmp_path / "model", router_aux_loss_coef=0.0)
        _, ours = chat_job(tmp_path, model, max_steps=1).train()
        assert ours.train_values("loss")[1] == pytest.approx(6.758356 - 1.022216, abs=1e-4)
        with pytest.raises(KeyError):
            ours.train_values("aux_loss")


class TestMicroBatches:
    def test_each_counts_by_its_items(self, tmp_path: Path) -> None:
        """Trainer adds the terms of all: twice as much in two micro-batches."""
        options: dict[str, Any] = {
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 2,
        }
        job = chat_job(tmp_path, **options, max_steps=1)
        _, ours = job.train()
        model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
        rows = list(job.splits["train"].features)[:4]
        batches = [rows[:2], rows[2:]]
        items = [labels(batch) for batch in batches]
        assert items[0] != items[1]
        losses = [own_loss(model, batch) for batch in batches]
        expected = sum(map(operator.mul, items, losses)) / sum(items)
        assert ours.train_values("loss")[1] == pytest.approx(expected, abs=1e-5)

    def test_a_resumed_training_is_the_uninterrupted_one(self, tmp_path: Path) -> None:
        job = chat_job(tmp_path, max_steps=4, logging_steps=4, save_steps=3, save_strategy="steps")
        whole, ours = job.train()
        resumed, again = job.train(attempt=3, resume_from=job.checkpoint(3))
        assert resumed.weights_sha256 == whole.weights_sha256
        for name in ("loss", "aux_loss"):
            assert again.train_values(name) == ours.train_values(name)

    def test_labels_may_be_smoothed(self, tmp_path: Path) -> None:
        """Trainer leaves the terms out then."""
        _, ours = chat_job(tmp_path, max_steps=1, label_smoothing_factor=0.1).train()
        assert ours.train_values("aux_loss")[1] == pytest.approx(1.022216, abs=1e-5)


def test_of_single_answers(tmp_path: Path) -> None:
    """KTO's loss of a model that is its own reference is a half; the rest is the model's term."""
    task = {"loss_type": "kto"}
    made = preference.job(tmp_path, task, max_steps=1, per_device_train_batch_size=12)
    made.body["model"]["name_or_path"] = str(save_experts(tmp_path / "experts"))
    pairs = map(preference.pair, range(12))
    rows = [
        {"prompt": row["prompt"], "completion": row[side], "label": side == "chosen"}
        for row, side in zip(pairs, ("chosen", "rejected") * 6, strict=True)
    ]
    for split in ("train", "validation"):
        made.body["dataset"][split] = write_rows(tmp_path / f"{split}.jsonl", rows)
    _, ours = made.train()
    loss, added = (ours.train_values(name)[1] for name in ("loss", "aux_loss"))
    assert loss - added == pytest.approx(0.5, abs=1e-6)
    features = made.splits["train"].features
    answers = [torch.tensor(each["input_ids"][: each["lengths"][0]]) for each in features]
    pad = torch.nn.utils.rnn.pad_sequence
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "experts")
    with torch.no_grad():
        output = model(
            pad(answers, batch_first=True),
            attention_mask=pad([torch.ones_like(row) for row in answers], batch_first=True),
        )
    assert added == pytest.approx(COEFFICIENT * float(output.aux_loss), abs=1e-5)


def test_of_encoders_and_decoders(tmp_path: Path) -> None:
    """NLLB's loss has the terms only if it gets labels."""
    folder = save_tiny_t5(tmp_path / "model", ["the report of the board"])
    transformers.set_seed(0)
    halves = {f"{part}_{name}": 2 for part in ("encoder", "decoder") for name in _NLLB}
    options: dict[str, Any] = {**halves, "output_router_logits": True, "dropout": 0.0}
    config = transformers.NllbMoeConfig(
        vocab_size=512,
        d_model=32,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        num_experts=4,
        decoder_start_token_id=1,
        pad_token_id=0,
        eos_token_id=1,
        router_aux_loss_coef=COEFFICIENT,
        **options,
    )
    model = transformers.NllbMoeForConditionalGeneration(config).eval()
    model.save_pretrained(folder)
    rows = [{"text": "the report " * n, "summary": "the board " * n} for n in (1, 2, 3, 4)]
    task = {"type": "summarization", "predict_with_generate": False}
    options = {**TRAINING, "max_steps": 1, "precision": "fp32"}
    job = job_of(tmp_path, task, folder, {"train": rows, "validation": rows}, options)
    _, ours = job.train()
    features = job.splits["validation"].features
    pad = torch.nn.utils.rnn.pad_sequence
    ids = pad([torch.tensor(each) for each in features["input_ids"]], batch_first=True)
    rows_of = [torch.tensor(each) for each in features["labels"]]
    targets = pad(rows_of, batch_first=True, padding_value=-100)
    with torch.no_grad():
        own = model(input_ids=ids, attention_mask=(ids != 0).long(), labels=targets)
    first = ours.evaluations()[0]
    assert first["eval_loss"] == pytest.approx(float(own.loss), abs=1e-5)
    added = COEFFICIENT * float(own.encoder_aux_loss + own.decoder_aux_loss)
    assert first["eval_aux_loss"] == pytest.approx(added, abs=1e-5)
    assert added > 0.5


_NLLB = ("layers", "attention_heads", "sparse_step")


def _same(model_type: str) -> bool:
    """Whether a model of this type adds to its loss, and ours is the same, on both paths."""
    found = model_losses.compare(model_type)
    for loss, gradients in [] if found is None else [found.padded, found.packed or (0, 0)]:
        assert loss < 1e-5
        assert gradients < 1e-5
    return found is not None


HANDFUL = ["mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "phimoe"]
HANDFUL += ["gpt_oss", "granitemoe", "jetmoe", "dbrx"]


@pytest.mark.parametrize("model_type", HANDFUL)
def test_ours_is_the_models_own_loss(model_type: str) -> None:
    """With that of its experts; rows of 5 to 200 tokens."""
    assert _same(model_type)


@pytest.mark.parametrize("model_type", ["llama", "gpt2"])
def test_most_models_add_nothing(model_type: str) -> None:
    assert not _same(model_type)


@pytest.mark.heavy
@pytest.mark.parametrize("model_type", list(every_model.MAPPINGS["causal-lm"]))
def test_of_every_type(model_type: str) -> None:
    try:
        _same(model_type)
    except LookupError:
        pytest.skip("no tiny model of this type")
