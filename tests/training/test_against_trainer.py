"""Where our options bear the names of `transformers.TrainingArguments`, they do the same."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.contract.stage.events import Metric
from tests.training.support.jobs import Job
from tests.training.support.reference_trainer import run_both


def _new_bests(log: list[dict[str, Any]]) -> set[int]:
    """Steps whose evaluation had a lower loss than all before it."""
    losses = [(entry["eval_loss"], entry["step"]) for entry in log if "eval_loss" in entry]
    before = [min((loss for loss, _ in losses[:n]), default=math.inf) for n in range(len(losses))]
    return {step for (loss, step), least in zip(losses, before, strict=True) if loss < least}


NUMBERS = [
    pytest.param({"num_train_epochs": 2}, id="not divisible by the batch"),
    pytest.param(
        {"num_train_epochs": 1.3, "per_device_train_batch_size": 4}, id="part of an epoch"
    ),
    pytest.param(
        {
            "num_train_epochs": 2,
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 4,
        },
        id="a shorter last accumulation",
    ),
    pytest.param(
        {
            "num_train_epochs": 1,
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 64,
        },
        id="accumulation longer than the epoch",
    ),
    pytest.param({"max_steps": 7, "per_device_train_batch_size": 5}, id="max_steps over epochs"),
    pytest.param(
        {"max_steps": 9, "warmup_steps": 0.25, "lr_scheduler_type": "cosine"},
        id="cosine, ratio of warm-up",
    ),
    pytest.param(
        {"max_steps": 6, "warmup_steps": 3, "lr_scheduler_type": "constant_with_warmup"},
        id="constant with warm-up",
    ),
    pytest.param(
        {"max_steps": 5, "lr_scheduler_type": "constant", "optim": "adafactor"}, id="adafactor"
    ),
    pytest.param(
        {
            "max_steps": 8,
            "optim": "adamw_torch",
            "weight_decay": 0.3,
            "adam_beta1": 0.8,
            "adam_beta2": 0.9,
            "adam_epsilon": 1e-4,
            "max_grad_norm": 0.1,
        },
        id="adamw's own options",
    ),
    pytest.param({"max_steps": 4, "max_grad_norm": 0.0}, id="no clipping"),
]


@pytest.mark.usefixtures("sequential")
class TestNumbers:
    @pytest.mark.parametrize("options", NUMBERS)
    def test_every_step(
        self, make_job: Callable[..., Job], tmp_path: Path, options: dict[str, Any]
    ) -> None:
        options = {**options, "logging_steps": 1, "save_strategy": "no"}
        ours, theirs, _ = run_both(make_job, tmp_path / "trainer", options)
        steps = {entry["step"]: entry for entry in theirs if "loss" in entry}
        assert list(ours.train_values("loss")) == list(steps)
        for name, relative in (("loss", 1e-4), ("grad_norm", 1e-3), ("learning_rate", 1e-12)):
            expected = {step: entry[name] for step, entry in steps.items()}
            assert ours.train_values(name) == pytest.approx(expected, rel=relative, abs=1e-12)
        epochs = [event.epoch for event in ours.of(Metric) if event.kind == "train"]
        assert epochs == pytest.approx([entry["epoch"] for entry in steps.values()], abs=1e-4)


MOMENTS: list[Any] = [
    pytest.param(
        {"max_steps": 10, "logging_steps": 3, "eval_strategy": "steps", "save_steps": 4},
        marks=pytest.mark.heavy,
    ),
    {"max_steps": 10, "logging_steps": 0.25, "eval_strategy": "steps", "save_steps": 0.35},
    pytest.param(
        {"max_steps": 9, "eval_strategy": "steps", "eval_steps": 3, "save_strategy": "epoch"},
        marks=pytest.mark.heavy,
    ),
    {"max_steps": 4, "logging_first_step": True, "logging_strategy": "no", "save_strategy": "no"},
    {
        "num_train_epochs": 2.5,
        "logging_strategy": "epoch",
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
    },
    {
        "max_steps": 8,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "save_strategy": "best",
        "metric_for_best_model": "eval_loss",
        "learning_rate": 0.3,
    },
    {
        "max_steps": 8,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "save_steps": 4,
        "load_best_model_at_end": True,
        "learning_rate": 0.3,
    },
]


@pytest.mark.usefixtures("sequential")
class TestMoments:
    @pytest.mark.parametrize("options", MOMENTS)
    def test_logs_evaluations_and_checkpoints(
        self, make_job: Callable[..., Job], tmp_path: Path, options: dict[str, Any]
    ) -> None:
        ours, theirs, watch = run_both(
            make_job, tmp_path / "trainer", {"logging_steps": 500, **options}
        )
        logged = {entry["step"]: entry["loss"] for entry in theirs if "loss" in entry}
        assert ours.train_values("loss") == pytest.approx(logged, rel=1e-4)
        evaluated = [entry["step"] for entry in theirs if "eval_loss" in entry]
        last = max(entry["step"] for entry in theirs)
        # Ours has the baseline before, and always knows the finished model's numbers.
        assert list(ours.evaluations()) == [0, *evaluated, *({last} - set(evaluated))]
        # With load_best_model_at_end, ours also saves each new best when it occurs.
        bests = _new_bests(theirs) if options.get("load_best_model_at_end") else set()
        assert ours.checkpoint_steps() == sorted(bests | set(watch.saved))
