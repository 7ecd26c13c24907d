"""service.contract.training against the installed transformers: names and defaults are the same."""

import dataclasses
from enum import Enum
from typing import Any

import pytest
import transformers
from pydantic import ValidationError

from service.contract.training import ADDITIONS, ALIASES, ELSEWHERE, TrainingSpec

THEIRS = {field.name: field for field in dataclasses.fields(transformers.TrainingArguments)}


def plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


class TestDefaults:
    @pytest.mark.parametrize("name", sorted(TrainingSpec.model_fields.keys() - ADDITIONS))
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
