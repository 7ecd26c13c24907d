"""Intervals that are longer than the training."""

from typing import Any

import pytest

from service.contract.spec.step_intervals import longer_than
from service.contract.spec.training import TrainingSpec


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["logging_steps"]),
        ({"logging_steps": 100}, []),
        ({"logging_steps": 101}, ["logging_steps"]),
        ({"logging_steps": 0.5}, []),
        ({"logging_strategy": "epoch"}, []),
        ({"logging_steps": 10, "eval_steps": 200}, []),
        ({"logging_steps": 10, "eval_steps": 200, "eval_strategy": "steps"}, ["eval_steps"]),
        ({"logging_steps": 10, "save_steps": 200}, ["save_steps"]),
        ({"logging_steps": 10, "save_steps": 200, "save_strategy": "epoch"}, []),
    ],
)
def test_longer_than(options: dict[str, Any], expected: list[str]) -> None:
    spec = TrainingSpec.model_validate(options)
    assert [option for option, _ in longer_than(100, spec)] == expected


def test_the_first_step_may_be_reported_all_the_same() -> None:
    [(_, sentence)] = longer_than(40, TrainingSpec(logging_first_step=True))
    assert "only that of the first step will be shown; set" in sentence


def test_the_sentence_names_the_number_to_use() -> None:
    [(_, sentence)] = longer_than(40, TrainingSpec())
    assert sentence == (
        "the training has 40 steps, and its loss is reported every 500 steps: no loss will be "
        "shown; set `training.logging_steps` to at most 40, or to a ratio such as 0.05"
    )
