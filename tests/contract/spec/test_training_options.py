"""Each field of the installed TrainingArguments is supported, elsewhere or refused; so the docs."""

import dataclasses
from typing import Any, get_args, get_type_hints

import pytest
import transformers
from pydantic import ValidationError

from service.contract.spec.deepspeed import REFUSED_DEEPSPEED
from service.contract.spec.fsdp import REFUSED_FSDP
from service.contract.spec.hub import HubSpec
from service.contract.spec.training import TrainingSpec
from service.contract.spec.training_fields import ADDITIONS
from service.contract.training_arguments.aliases import ALIASES, SWITCHES
from service.contract.training_arguments.choices import parse_optim_args
from service.contract.training_arguments.moved_options import ELSEWHERE
from service.contract.training_arguments.refused_options import (
    REFUSED,
    REFUSED_OPTIMIZERS,
    REFUSED_SAMPLING,
    REMOVED,
)
from service.contract.training_arguments.script_options import NOT_NEEDED, PLACES
from tests.contract.factories import DUMPS

THEIRS = {field.name: field for field in dataclasses.fields(transformers.TrainingArguments)}


class TestEveryField:
    @pytest.mark.parametrize("name", THEIRS)
    def test_stands_in_one_table(self, name: str) -> None:
        """An upgrade that adds an option fails here, until the option has its place."""
        tables = (TrainingSpec.model_fields, ALIASES, ELSEWHERE, REFUSED)
        assert sum(name in table for table in tables) == 1

    @pytest.mark.parametrize("name", sorted(set().union(*DUMPS.values()) - set(THEIRS)))
    def test_of_4x_stands_in_one_table(self, name: str) -> None:
        tables = (TrainingSpec.model_fields, ALIASES, SWITCHES, ELSEWHERE, REMOVED, PLACES)
        assert sum(name in table for table in tables) == 1

    def test_none_is_refused_that_does_not_exist(self) -> None:
        assert set(REFUSED) <= set(THEIRS)
        assert set(REMOVED) <= set().union(*DUMPS.values())
        assert not set(REMOVED) & set(THEIRS)
        assert set(TrainingSpec.model_fields) - set(THEIRS) == set(ADDITIONS)

    @pytest.mark.parametrize("name", TrainingSpec.model_fields)
    def test_says_what_it_does(self, name: str) -> None:
        assert TrainingSpec.model_fields[name].description

    @pytest.mark.parametrize(
        "table",
        [
            REFUSED,
            REMOVED,
            NOT_NEEDED,
            REFUSED_OPTIMIZERS,
            REFUSED_SAMPLING,
            REFUSED_FSDP,
            REFUSED_DEEPSPEED,
            ELSEWHERE,
        ],
    )
    def test_sentences(self, table: dict[str, str]) -> None:
        assert all(len(sentence.split()) > 1 for sentence in table.values())


class TestHubStrategy:
    def test_names_are_those_of_transformers(self) -> None:
        from transformers.trainer_utils import HubStrategy

        ours = get_args(get_type_hints(HubSpec)["strategy"])
        assert {name.value for name in HubStrategy} == set(ours)


class TestForms:
    def test_as_training_arguments_takes_them(self) -> None:
        spec = TrainingSpec.model_validate(
            {
                "lr_scheduler_type": "polynomial",
                "lr_scheduler_kwargs": '{"power": 2.0}',
                "include_num_input_tokens_seen": True,
                "gradient_checkpointing": True,
                "gradient_checkpointing_kwargs": {"use_reentrant": False},
                "group_by_length": True,
            }
        )
        assert spec.lr_scheduler_kwargs == {"power": 2.0}
        assert spec.include_num_input_tokens_seen == "all"
        assert spec.activation_checkpointing is True
        assert spec.activation_checkpointing_kwargs == {"use_reentrant": False}
        assert spec.train_sampling_strategy == "group_by_length"

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({}, ("auto", False, False)),
            ({"bf16": True}, ("bf16", True, False)),
            ({"fp16": True, "bf16": False}, ("fp16", False, True)),
            ({"bf16": False}, ("fp32", False, False)),
            ({"fp16": False}, ("auto", False, False)),
            ({"precision": "bf16"}, ("bf16", True, False)),
            ({"precision": "fp16"}, ("fp16", False, True)),
            ({"precision": "auto", "bf16": True}, ("bf16", True, False)),
            ({"precision": "fp32", "bf16": False}, ("fp32", False, False)),
        ],
    )
    def test_precision_by_either_name(
        self, options: dict[str, Any], expected: tuple[str, bool, bool]
    ) -> None:
        spec = TrainingSpec.model_validate(options)
        assert (spec.precision, spec.bf16, spec.fp16) == expected
        # As it is kept in SQL and read again.
        assert TrainingSpec.model_validate(spec.model_dump()) == spec

    @pytest.mark.parametrize("name", ["torch_compile_backend", "torch_compile_mode"])
    def test_a_part_of_compiling_asks_for_it(self, name: str) -> None:
        value = "eager" if name.endswith("backend") else "default"
        assert TrainingSpec.model_validate({name: value}).compiles
        assert not TrainingSpec().compiles

    def test_arguments_of_an_optimizer(self) -> None:
        assert parse_optim_args("a=1, b = x,") == {"a": "1", "b": "x"}
        assert parse_optim_args(None) == {}


@pytest.mark.parametrize("value", [{}, [], {"type": "bf16"}, 16, None])
def test_a_precision_that_is_not_a_name_is_a_fault_and_no_error(value: Any) -> None:
    with pytest.raises(ValidationError, match="precision"):
        TrainingSpec.model_validate({"precision": value})
