"""service.contract.training against the installed transformers: names and defaults are the same."""

import dataclasses
from enum import Enum
from typing import Any

import pytest
import transformers
from pydantic import ValidationError

from service.contract.training import TrainingSpec
from service.contract.training_arguments.aliases import ALIASES
from service.contract.training_arguments.moved_options import ELSEWHERE
from service.contract.training_fields import ADDITIONS

THEIRS = {field.name: field for field in dataclasses.fields(transformers.TrainingArguments)}


def plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


# Without numbers from before, nobody knows what a training was good for.
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
        assert not set(ELSEWHERE) & set(TrainingSpec.model_fields)

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


class TestTwoNames:
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
        ],
    )
    def test_that_disagree(self, options: dict[str, Any], message: str) -> None:
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
    def test_that_agree_or_of_which_one_says_nothing(
        self, options: dict[str, Any], expected: dict[str, Any]
    ) -> None:
        assert TrainingSpec.model_validate(options) == TrainingSpec.model_validate(expected)
