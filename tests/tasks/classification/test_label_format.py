"""worker.tasks.classification.label_format: whether lists of numbers are vectors or indices."""

from typing import Any

import pytest

from service.contract.failures import FailureCode, StageError
from service.contract.tasks.parameters import TextClassificationSpec
from tests.training.support.jobs import fails_with
from worker.data.inferences import Inferences
from worker.data.table import RowError
from worker.tasks.classification import label_format
from worker.tasks.classification.labels import ModelLabels
from worker.tasks.classification.text_rows import RowCleaner


def decided(labels: list[Any], **parameters: Any) -> tuple[Any, Any]:
    """The format that the cleaner is given, and the one that is reported."""
    detector = label_format.detector(TextClassificationSpec(**parameters))
    assert detector is not None
    for label in labels:
        detector({"text": "t", "label": label})
        if detector.is_done:
            break
    found = Inferences()
    given = detector.decided(found).label_format
    reported = found.as_json().get("task.label_format")
    return given, reported and reported["value"]


class TestDetector:
    @pytest.mark.parametrize(
        ("labels", "expected"),
        [
            ([[1, 0, 1], [0, 0, 0], [0, 1, 0]], "vector"),
            (["[1, 0, 1]", "[0, 1, 0]"], "vector"),
            ([[1.0, 0.0], [0.0, 1.0]], "vector"),
            ([[True, False], [False, True]], "vector"),
            ([[0, 1], [1, 0], [1, 1]], "vector"),
            ([[0, 1], [1, 0], None, "broken [", [0, 0]], "vector"),
            ([[0, 1], [1]], "indices"),
            ([[0], [1], [1]], "indices"),
            ([[0, 1], []], "indices"),
            ([[0, 1], [2, 0]], "indices"),
            ([["a"], ["b", "a"]], None),
            ([[0, 1], ["a"]], None),
            (["a", "b"], None),
            ([3, 0], None),
            ([], None),
        ],
    )
    def test_follows_from_all_rows(self, labels: list[Any], expected: str | None) -> None:
        given, reported = decided(labels)
        assert reported == expected
        # Indices are read as in a job without any list of numbers.
        assert given == ("vector" if expected == "vector" else None)

    def test_the_number_of_names_counts(self) -> None:
        assert decided([[0, 1], [1, 0]], label_names=["a", "b", "c"]) == (None, "indices")
        with pytest.raises(StageError, match=r"\[0, 1\] can be a `vector`"):
            decided([[0, 1], [1, 0]], label_names=["a", "b"])

    @pytest.mark.parametrize(
        ("labels", "problem"),
        [
            ([[0, 1], [1, 0]], r"\[0, 1\] can be a `vector`, .*, or a list of `indices`"),
            ([[1, 0, 1], [0, 2]], r"\[0, 2\] has an entry other than 0 and 1; .* repeats an entry"),
            ([[1, 0, 1], [0, 1]], r"\[0, 1\] has 2 entries, not 3; nor .*\[1, 0, 1\] repeats"),
        ],
    )
    def test_refuses_what_can_be_both_or_neither(self, labels: list[Any], problem: str) -> None:
        with fails_with(
            FailureCode.INVALID_OPTION, f"`task.label_format` is needed: .*{problem}"
        ) as e:
            decided(labels)
        assert e.value.failure.details["option"] == "task.label_format"

    @pytest.mark.parametrize(
        "parameters",
        [
            {"label_format": "vector"},
            {"label_columns": ["a", "b"]},
            {"problem_type": "regression"},
            {"problem_type": "single_label_classification"},
        ],
    )
    def test_nothing_is_open(self, parameters: dict[str, Any]) -> None:
        assert label_format.detector(TextClassificationSpec(**parameters)) is None


def labels_of(label: Any, names: list[str] | None = None, **parameters: Any) -> list[str]:
    given = TextClassificationSpec(label_names=names, **parameters)
    found: list[str] = RowCleaner("train", given)({"text": "t", "label": label})["labels"]
    return found


class TestFormats:
    NAMES = ("a", "b", "c")

    @pytest.mark.parametrize("label", [[1, 0, 1], [1.0, 0.0, 1.0], [True, False, True]])
    def test_vectors(self, label: list[Any]) -> None:
        assert labels_of(label, [*self.NAMES], label_format="vector") == ["a", "c"]
        assert labels_of(label, label_format="vector") == ["0", "2"]

    def test_numbers_are_names_or_places(self) -> None:
        names = ["10", "20", "1"]
        assert labels_of([10, 1], names, label_format="names") == ["10", "1"]
        assert labels_of(["1", 0], names, label_format="indices") == ["20", "10"]
        assert labels_of(1, names, label_format="names") == ["1"]
        assert labels_of([2.0], names) == ["1"]

    @pytest.mark.parametrize(
        ("label", "parameters", "problem"),
        [
            ([1, 0], {"label_format": "vector", "names": NAMES}, "has 2 entries, but there are 3"),
            ([1, 0, 2], {"label_format": "vector"}, "must be 0 or 1 .*, not 2"),
            ([1, 0, -100], {"label_format": "vector"}, "must be 0 or 1 .*, not -100"),
            ([1, 0.5, 0], {"label_format": "vector"}, "must be 0 or 1 .*, not 0.5"),
            ([1], {"label_format": "vector"}, "two labels or more"),
            ("a", {"label_format": "vector"}, "must be a list"),
            (
                [0, 0],
                {"label_format": "indices"},
                "repeats an entry: .* `task.label_format: vector`",
            ),
            (["1", "0", "1"], {}, "repeats an entry"),
            ([0, 3], {"names": NAMES}, "3 is not an index into `task.label_names`"),
            (["x"], {"label_format": "indices", "names": NAMES}, "'x' is not an index"),
            ([0], {"label_format": "names", "names": NAMES}, "'0' is not among `task.label_names`"),
        ],
    )
    def test_impossible_ones(self, label: Any, parameters: dict[str, Any], problem: str) -> None:
        given = {**parameters, "names": list(parameters.get("names", ())) or None}
        with pytest.raises(RowError, match=problem):
            labels_of(label, **given)

    def test_a_name_twice_is_one_label(self) -> None:
        assert labels_of(["a", "b", "a"]) == ["a", "b"]

    def test_names_of_a_model_that_are_numbers(self) -> None:
        parameters = TextClassificationSpec().model_copy(
            update={"label_names": ModelLabels(["2", "9", "10"])}
        )
        clean = RowCleaner("validation", parameters)
        assert clean({"text": "t", "label": [2, 10]})["labels"] == ["2", "10"]


class TestColumns:
    @pytest.mark.parametrize(
        "cells", [("1", "0"), (1, 0), (True, False), ("True", "false"), (1.0, "0.0")]
    )
    def test_one_for_each_label(self, cells: tuple[Any, Any]) -> None:
        clean = RowCleaner("train", TextClassificationSpec(label_columns=["toxic", "rude"]))
        row = {"text": "t", "label.toxic": cells[0], "label.rude": cells[1]}
        assert clean(row)["labels"] == ["toxic"]

    @pytest.mark.parametrize(
        ("cell", "problem"), [("", "`rude` is empty"), (None, "not None"), ("2", "`rude` must be")]
    )
    def test_bad_cells_are_named_by_their_column(self, cell: Any, problem: str) -> None:
        clean = RowCleaner("train", TextClassificationSpec(label_columns=["toxic", "rude"]))
        with pytest.raises(RowError, match=problem):
            clean({"text": "t", "label.toxic": 1, "label.rude": cell})
