"""Language models compared with `transformers.Trainer`, set up as in run_clm and run_mlm."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from tests.support.models import minilm_dir, save_tiny_gpt2, saved, tiny_bert_config
from tests.tasks.stages import job_of
from tests.training.support.jobs import PLAIN
from tests.training.support.reference_trainer import arguments
from worker.tasks.language_modeling.masking import EpochMasks, MaskedFeatures, Masking

TEXTS = [
    "the report of the water board was read by all\n",
    "all who were there in the morning read the report of the board\n",
    "it was read\n",
] * 14
OPTIONS = [
    pytest.param(
        {"max_steps": 8, "per_device_train_batch_size": 4}, id="plain", marks=pytest.mark.heavy
    ),
    pytest.param(
        {
            "num_train_epochs": 2,
            "per_device_train_batch_size": 3,
            "gradient_accumulation_steps": 3,
            "lr_scheduler_type": "cosine",
            "warmup_steps": 2,
            "weight_decay": 0.1,
        },
        id="accumulated, two epochs",
    ),
]


def save_tiny_masked_bert(folder: Path) -> Path:
    """With its head, so that none of the weights starts at random."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm_dir())
    transformers.set_seed(0)
    config = tiny_bert_config(vocab_size=len(tokenizer))
    return saved(folder, transformers.BertForMaskedLM(config), tokenizer)


class _Rows(torch.utils.data.Dataset[Any]):
    """`epochs(e)` is what the e-th pass over the data sees; Trainer reads it in order."""

    def __init__(self, epochs: Callable[[int], Any], size: int) -> None:
        self._epochs = epochs
        self._size = size
        self._read = 0

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        epoch, self._read = self._read // self._size, self._read + 1
        row: Mapping[str, Any] = self._epochs(epoch)[index]
        return row


def accuracy_of(*, shifted: bool) -> Callable[[Any], dict[str, float]]:
    """run_clm's and run_mlm's own metric."""

    def compute(prediction: Any) -> dict[str, float]:
        labels, found = prediction.label_ids, prediction.predictions
        if shifted:
            labels, found = labels[:, 1:], found[:, :-1]
        asked = labels != -100
        return {"accuracy": float((found[asked] == labels[asked]).mean())}

    return compute


def run_trainer(
    folder: Path,
    model: Any,
    collator: Any,
    train: _Rows,
    validation: _Rows,
    options: dict[str, Any],
    *,
    shifted: bool,
) -> tuple[dict[int, float], dict[str, float]]:
    """(step → loss, evaluation at the end)"""
    trainer = transformers.Trainer(
        model=model,
        args=arguments(folder, save_strategy="no", **options),
        data_collator=collator,
        train_dataset=train,
        eval_dataset=validation,
        compute_metrics=accuracy_of(shifted=shifted),
        preprocess_logits_for_metrics=lambda logits, _labels: logits.argmax(dim=-1),
    )
    trainer.train()
    losses = {
        int(entry["step"]): entry["loss"] for entry in trainer.state.log_history if "loss" in entry
    }
    return losses, trainer.evaluate()


def run_ours(
    tmp_path: Path, model: Path, task: dict[str, Any], options: dict[str, Any]
) -> tuple[dict[int, float], dict[str, float], dict[str, Any]]:
    """(step → loss, evaluation at the end, the prepared splits)"""
    rows = [{"text": text} for text in TEXTS]
    dataset = {"train": rows, "validation": rows[4:17]}
    options = PLAIN | {"save_strategy": "no", **options}
    job = job_of(tmp_path / "home", task, model, dataset, options)
    result, recorder = job.train()
    splits = job.splits
    features = {name: split.features for name, split in splits.items()}
    return recorder.train_values("loss"), result.metrics, features


def assert_equal(
    ours: tuple[dict[int, float], dict[str, float]],
    theirs: tuple[dict[int, float], dict[str, float]],
) -> None:
    assert list(ours[0]) == list(theirs[0])
    assert len(ours[0]) >= 6
    assert ours[0] == pytest.approx(theirs[0], rel=1e-4)
    loss = theirs[1]["eval_loss"]
    assert ours[1]["eval_loss"] == pytest.approx(loss, rel=1e-4)
    assert ours[1]["eval_perplexity"] == pytest.approx(math.exp(loss), rel=1e-3)
    assert ours[1]["eval_accuracy"] == pytest.approx(theirs[1]["eval_accuracy"], abs=1e-9)


COMMON: dict[str, Any] = {
    "logging_steps": 1,
    "learning_rate": 1e-2,
    "train_sampling_strategy": "sequential",
    # In one batch: Trainer's evaluation is a mean over batches, ours over tokens.
    "per_device_eval_batch_size": 64,
}


@pytest.mark.parametrize("options", OPTIONS)
class TestAgainstTrainer:
    def test_causal_lm(self, tmp_path: Path, options: dict[str, Any]) -> None:
        folder = save_tiny_gpt2(tmp_path / "model", dropout=0.0)
        options = COMMON | options
        task = {"type": "causal-lm", "block_size": 16}
        losses, metrics, features = run_ours(tmp_path, folder, task, options)

        def rows(split: str) -> _Rows:
            blocks = [{"input_ids": ids, "labels": ids} for ids in features[split]["input_ids"]]
            return _Rows(lambda _epoch: blocks, len(blocks))

        model = transformers.AutoModelForCausalLM.from_pretrained(folder)
        model.loss_type = "ForCausalLM"  # else Trainer counts labels that shifting loses
        theirs = run_trainer(
            tmp_path / "trainer",
            model,
            transformers.default_data_collator,
            rows("train"),
            rows("validation"),
            options,
            shifted=True,
        )
        assert_equal((losses, metrics), theirs)

    @pytest.mark.parametrize("line_by_line", [False, pytest.param(True, marks=pytest.mark.heavy)])
    def test_masked_lm(self, tmp_path: Path, options: dict[str, Any], line_by_line: bool) -> None:
        folder = save_tiny_masked_bert(tmp_path / "model")
        # BERT's own loss ignores how many tokens an accumulated batch has, and Trainer adds up
        # the means of its parts.
        options = COMMON | options | {"gradient_accumulation_steps": 1}
        task = {"type": "masked-lm", "max_seq_length": 16, "line_by_line": line_by_line}
        task |= {"mlm_probability": 0.3}
        losses, metrics, features = run_ours(tmp_path, folder, task, options)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        masking = Masking.for_tokenizer(tokenizer, 42, 0.3)
        train = EpochMasks(features["train"], masking)
        validation = MaskedFeatures(features["validation"], masking)
        theirs = run_trainer(
            tmp_path / "trainer",
            transformers.AutoModelForMaskedLM.from_pretrained(folder),
            _padded(tokenizer),
            _Rows(train.at_epoch, len(train)),
            _Rows(lambda _epoch: validation, len(validation)),
            options,
            shifted=False,
        )
        assert_equal((losses, metrics), theirs)


def _padded(tokenizer: Any) -> Callable[[list[Mapping[str, Any]]], dict[str, torch.Tensor]]:
    """As DataCollatorForLanguageModeling, but with the masks that the features have."""
    collate = transformers.DataCollatorForTokenClassification(tokenizer)

    def padded(features: list[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        plain = [{name: np.asarray(row[name]).tolist() for name in row} for row in features]
        batch: dict[str, torch.Tensor] = dict(collate(plain))
        return batch

    return padded
