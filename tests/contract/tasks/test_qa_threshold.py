"""Rules for `task.null_score_diff_threshold: auto`."""

from typing import Any

import pytest

from service.api.faults.collect import collect

FIELD = "null_score_diff_threshold"


def faults(task: dict[str, Any], **dataset: Any) -> dict[str, str]:
    body = {
        "task": {"type": "question-answering", "version_2_with_negative": True, **task},
        "model": {"name_or_path": "org/model"},
        "dataset": {"source": "hub", "name": "squad_v2", **dataset},
    }
    return {fault.path: fault.message for fault in collect(body).faults}


@pytest.mark.parametrize(
    "dataset", [{"validation": "validation"}, {"validation_split_percentage": 10}]
)
def test_one_validation_set_finds_it(dataset: dict[str, Any]) -> None:
    assert faults({FIELD: "auto"}, **dataset) == {}


@pytest.mark.parametrize("number", [0, -1.5, 1e6])
def test_a_number_needs_none(number: float) -> None:
    assert faults({FIELD: number}) == {}


@pytest.mark.parametrize(
    ("task", "dataset", "message"),
    [
        ({FIELD: "auto"}, {}, "give `dataset.validation`"),
        ({FIELD: "auto"}, {"validation": {"a": "x", "b": "y"}}, "give a number, or one set"),
        (
            {FIELD: "auto", "version_2_with_negative": False},
            {"validation": "validation"},
            "needs `version_2_with_negative: true`",
        ),
        ({FIELD: "automatic"}, {}, "must be `auto`"),
    ],
)
def test_faults(task: dict[str, Any], dataset: dict[str, Any], message: str) -> None:
    found = faults(task, **dataset)
    assert list(found) == [f"task.{FIELD}"]
    assert message in found[f"task.{FIELD}"]
