"""`task.label_format` and `task.label_columns`, and what they do not go with."""

from typing import Any

import pytest
from pydantic import ValidationError

from tests.contract.factories import job_spec, spec_body


def classification(columns: dict[str, str] | None = None, **task: Any) -> Any:
    dataset = {**spec_body()["dataset"], "columns": columns or {}}
    return job_spec(task={"type": "text-classification", **task}, dataset=dataset)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"label_format": "one-hot"}, "label_format"),
        ({"label_format": "vector", "problem_type": "regression"}, "`label_format: vector` gives"),
        (
            {"label_columns": ["a", "b"], "problem_type": "single_label_classification"},
            "`label_columns` gives several labels",
        ),
        ({"label_format": "names", "problem_type": "regression"}, "`label_format` is about labels"),
        ({"label_columns": ["a", "b"], "label_format": "indices"}, "`label_columns` are a vector"),
        ({"label_columns": ["a", "b"], "label_names": ["x", "y", "z"]}, "each of the 2"),
        ({"label_columns": ["a", "a"]}, "repeated: 'a'"),
        ({"label_columns": ["a"]}, "at least 2"),
        ({"label_columns": ["a", "text"]}, "names 'text', the column of `text`"),
        ({"label_columns": ["a", "b"], "columns": {"label": "a"}}, "takes the place of"),
    ],
)
def test_contradictions(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        classification(**given)


def test_columns_may_have_other_names_in_the_model() -> None:
    task = classification(label_columns=["a", "b"], label_names=["toxic", "rude"]).task
    assert (task.names(), task.known_problem()) == (["toxic", "rude"], "multi_label_classification")
    assert classification(label_columns=["a", "b"]).task.names() == ["a", "b"]
    assert classification(label_format="indices").task.known_problem() is None
