"""`training` of a spec against the installed transformers: names and defaults are the same."""

import dataclasses
from enum import Enum
from typing import Any

import pytest
import transformers
from pydantic import ValidationError

from service.contract.spec.training import TrainingSpec
from service.contract.spec.training_fields import ADDITIONS
from service.contract.training_arguments.aliases import ALIASES
from service.contract.training_arguments.moved_options import ELSEWHERE

THEIRS = {field.name: field for field in dataclasses.fields(transformers.TrainingArguments)}


def plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


# Without numbers from before the training, its gain is unknown.
OWN_DEFAULTS = {
    "eval_on_start": True,
    # Null: by the device (`worker.training.batches.dataloader.for_device`).
    "dataloader_num_workers": None,
    "per_device_eval_batch_size": None,
}


class TestDefaults:
    @pytest.mark.parametrize("name", OWN_DEFAULTS)
    def test_of_our_own(self, name: str) -> None:
        assert TrainingSpec.model_fields[name].default == OWN_DEFAULTS[name]
        assert OWN_DEFAULTS[name] != plain(THEIRS[name].default)

    @pytest.mark.parametrize(
        "name", sorted(TrainingSpec.model_fields.keys() - ADDITIONS - OWN_DEFAULTS.keys())
    )
    def test_as_in_training_arguments(self, name: str) -> None:
        assert name in THEIRS
        assert TrainingSpec.model_fields[name].default == plain(THEIRS[name].default)


class TestElsewhere:
    def test_names_are_those_that_people_know_and_not_ours(self) -> None:
        assert not set(ELSEWHERE) & {*TrainingSpec.model_fields, *ALIASES}

    def test_aliases_lead_to_fields(self) -> None:
        assert set(ALIASES.values()) <= set(TrainingSpec.model_fields)
        assert not set(ALIASES) & set(TrainingSpec.model_fields)


class TestIntervals:
    @pytest.mark.parametrize("name", ["logging_steps", "eval_steps", "save_steps"])
    def test_whole_from_one_on(self, name: str) -> None:
        """As in TrainingArguments: below 1 it is a ratio, above it must be whole."""
        assert getattr(TrainingSpec.model_validate({name: 0.5}), name) == 0.5
        assert getattr(TrainingSpec.model_validate({name: 3.0}), name) == 3
        with pytest.raises(ValidationError, match=f"`{name}` must be whole"):
            TrainingSpec.model_validate({name: 2.5})


class TestOptionsTogether:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (
                {"adafactor": True, "optim": "adamw_torch"},
                "`adafactor: true` and `optim: adamw_torch` contradict",
            ),
            (
                {"group_by_length": True, "train_sampling_strategy": "random"},
                "`group_by_length: true` and `train_sampling_strategy: random` contradict",
            ),
            (
                {"evaluation_strategy": "epoch", "eval_strategy": "steps"},
                "`evaluation_strategy: epoch` and `eval_strategy: steps` are two names",
            ),
            (
                {"per_gpu_train_batch_size": 4, "train_batch_size": 16},
                "`train_batch_size: 16` and `per_gpu_train_batch_size: 4` are two names",
            ),
            (
                {"eval_batch_size": 4, "per_device_eval_batch_size": 8},
                "`eval_batch_size: 4` and `per_device_eval_batch_size: 8` are two names",
            ),
            (
                {"no_cuda": True, "use_cpu": False},
                "`no_cuda: true` and `use_cpu: false` are two names",
            ),
            (
                {"warmup_ratio": 0.1, "warmup_steps": 500},
                "`warmup_ratio: 0.1` and `warmup_steps: 500` are two names",
            ),
            ({"warmup_ratio": 1}, "`warmup_ratio` must be below 1"),
            (
                {"gradient_checkpointing": True, "activation_checkpointing": False},
                "`gradient_checkpointing: true` and `activation_checkpointing: false` are two",
            ),
            ({"adafactor": "yes"}, "`adafactor` must be true or false"),
            ({"precision": "fp32", "fp16": True}, "`precision: fp32` contradicts"),
            ({"on_oom": "halve_batch", "auto_find_batch_size": False}, "contradict each other"),
            ({"on_oom": "fail", "auto_find_batch_size": True}, "contradict each other"),
            ({"optim": "galore_adamw"}, "`galore_adamw` is refused: its package"),
            ({"optim": "lomo"}, "`lomo` is refused: it updates weights"),
            ({"train_sampling_strategy": "batch_rebalance"}, "`batch_rebalance` is refused"),
            ({"optim_args": "momentum=0.9"}, "`optim: adamw_torch_fused` takes none"),
            ({"optim": "sgd", "optim_args": "speed=1"}, "takes `momentum`, `dampening`"),
            ({"optim": "sgd", "optim_args": "momentum"}, "must be `name=value, …`"),
            ({"lr_scheduler_kwargs": {"power": 2}}, "`lr_scheduler_type: linear` takes none"),
            ({"lr_scheduler_kwargs": "{1"}, "not a valid JSON object"),
            (
                {"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": {"lr_end": 1e-3}},
                "has `lr_end: 0.001`, which must be below `learning_rate`",
            ),
            (
                {"lr_scheduler_type": "polynomial", "learning_rate": 1e-8},
                "`learning_rate` must be above the rate at which `polynomial` ends, 1e-07",
            ),
            ({"lr_scheduler_type": "cosine_with_min_lr"}, "`min_lr_rate`, and has none"),
            (
                {
                    "lr_scheduler_type": "cosine_warmup_with_min_lr",
                    "lr_scheduler_kwargs": {"min_lr": 1e-6, "min_lr_rate": 0.1},
                },
                "`min_lr_rate`, and has both",
            ),
            ({"lr_scheduler_type": "warmup_stable_decay"}, "must have `num_decay_steps`"),
            (
                {
                    "lr_scheduler_type": "warmup_stable_decay",
                    "lr_scheduler_kwargs": {"num_decay_steps": 3, "decay_type": "exp"},
                },
                "has `decay_type: exp`, which must be one of `linear`, `cosine`, `1-sqrt`",
            ),
            (
                {
                    "lr_scheduler_type": "reduce_lr_on_plateau",
                    "eval_strategy": "steps",
                    "lr_scheduler_kwargs": {"factor": 1.0},
                },
                "has `factor: 1.0`, which must be below 1",
            ),
            ({"lr_scheduler_type": "reduce_lr_on_plateau"}, "needs `eval_strategy`"),
            ({"lr_scheduler_type": "greedy"}, "needs `eval_strategy`"),
            ({"early_stopping_patience": 1}, "needs `eval_strategy`"),
            ({"dataloader_prefetch_factor": 2}, "needs `dataloader_num_workers`"),
            ({"dataloader_persistent_workers": True}, "needs `dataloader_num_workers`"),
            ({"fp16_full_eval": True, "bf16_full_eval": True}, "exclude each other"),
            ({"precision": "fp32", "bf16": True}, "`precision: fp32` contradicts"),
            ({"precision": "bf16", "fp16": True}, "exclude each other"),
            ({"precision": "bf16", "bf16": False}, "`precision` and `bf16` contradict"),
            ({"padding_free": True, "torch_compile": True}, "excludes `torch_compile`"),
            ({"padding_free": True, "neftune_noise_alpha": 5}, "excludes `neftune_noise_alpha`"),
            ({"activation_checkpointing_kwargs": {"use_reentrant": True}}, "does nothing without"),
            ({"non_finite_rollbacks": 2}, "does nothing without `on_non_finite: rollback`"),
            ({"rollback_learning_rate_factor": 0.1}, "does nothing without"),
            ({"load_best_model_at_end": True}, "chosen by evaluations"),
            (
                {
                    "load_best_model_at_end": True,
                    "eval_strategy": "epoch",
                    "save_strategy": "no",
                },
                "needs a checkpoint of each new best evaluation: set `save_strategy`; with "
                "`best` no others are written",
            ),
        ],
    )
    def test_some_are_refused_with_a_reason(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ValidationError) as caught:
            TrainingSpec.model_validate(options)
        assert message in str(caught.value)

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({"warmup_ratio": 0, "warmup_steps": 500}, {"warmup_steps": 500}),
            ({"warmup_ratio": 0.1, "warmup_steps": 0}, {"warmup_steps": 0.1}),
            ({"warmup_ratio": 0.1}, {"warmup_steps": 0.1}),
            ({"adafactor": False, "optim": "adafactor"}, {"optim": "adafactor"}),
            ({"adafactor": True, "optim": "adafactor"}, {"optim": "adafactor"}),
            ({"adafactor": True}, {"optim": "adafactor"}),
            (
                {"group_by_length": False, "train_sampling_strategy": "group_by_length"},
                {"train_sampling_strategy": "group_by_length"},
            ),
            ({"evaluation_strategy": None, "eval_strategy": "steps"}, {"eval_strategy": "steps"}),
            (
                {"evaluation_strategy": "epoch", "eval_strategy": "epoch"},
                {"eval_strategy": "epoch"},
            ),
            (
                {"per_gpu_train_batch_size": None, "per_device_train_batch_size": 2},
                {"per_device_train_batch_size": 2},
            ),
            ({"no_cuda": False, "use_cpu": True}, {"use_cpu": True}),
            (
                {"gradient_checkpointing": False, "activation_checkpointing": True},
                {"activation_checkpointing": True},
            ),
            ({"gradient_checkpointing": None}, {"activation_checkpointing": None}),
        ],
    )
    def test_two_names_may_agree_or_one_say_nothing(
        self, options: dict[str, Any], expected: dict[str, Any]
    ) -> None:
        assert TrainingSpec.model_validate(options) == TrainingSpec.model_validate(expected)
