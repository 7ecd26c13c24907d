"""worker.tasks.classification.text_rows: what labels look like, and what they are as a whole."""

from typing import Any

import datasets
import pytest

from service.contract.failures import FailureCode
from service.contract.tasks.parameters import TextClassificationSpec
from tests.training.support.jobs import fails_with
from worker.data.table import RowError
from worker.tasks.classification.text import TextClassification
from worker.tasks.classification.text_rows import MULTI, REGRESSION, SINGLE, RowCleaner, Scheme


def cleaned(labels: list[Any], **parameters: Any) -> datasets.Dataset:
    clean = RowCleaner("train", TextClassificationSpec(**parameters))
    rows = [clean({"text": f"text {number}", "label": v}) for number, v in enumerate(labels)]
    return datasets.Dataset.from_list(rows, features=TextClassification().example_schema())


def scheme(labels: list[Any], **parameters: Any) -> Scheme:
    return Scheme.from_examples(TextClassificationSpec(**parameters), cleaned(labels, **parameters))


def test_a_label_that_is_not_a_float() -> None:
    clean = RowCleaner("train", TextClassificationSpec())
    assert clean({"text": "a", "label": 10**400})["labels"] == ["1" + "0" * 400]


class TestProblem:
    @pytest.mark.parametrize(
        ("labels", "problem", "names"),
        [
            (["sad", "glad", "sad"], SINGLE, ("glad", "sad")),
            ([10, 9, 2, 10], SINGLE, ("2", "9", "10")),
            (["10", "9", "2"], SINGLE, ("2", "9", "10")),
            (["10", "9", "x"], SINGLE, ("10", "9", "x")),
            ([["b"], [], ["a", "b"]], MULTI, ("a", "b")),
            (['["b"]', '["a", "b"]'], MULTI, ("a", "b")),
            ([True, False], SINGLE, ("false", "true")),
            ([[3, 0], [1]], MULTI, ("0", "1", "3")),
            ([1.0, 0.0, 1.0], SINGLE, ("0", "1")),
            ([1.0, 0, "1.0"], SINGLE, ("0", "1")),
            (["1.0", "0.0"], SINGLE, ("0", "1")),
            (["1.0", "beta"], SINGLE, ("1", "beta")),
            ([0.5, 2.0], REGRESSION, ()),
            ([0, 1.5], REGRESSION, ()),
            (["0", "-1.5e3"], REGRESSION, ()),
        ],
    )
    def test_follows_from_the_training_labels(
        self, labels: list[Any], problem: str, names: tuple[str, ...]
    ) -> None:
        found = scheme(labels)
        assert (found.problem, found.classes.names) == (problem, names)

    def test_what_the_options_say_comes_first(self) -> None:
        assert scheme([1, 2, 3], problem_type=REGRESSION).problem == REGRESSION
        assert scheme([1.0, 2.0], problem_type=SINGLE).classes.names == ("1", "2")
        assert scheme(["1.5", "2.5"], label_names=["1.5", "2.5"]).problem == SINGLE

    def test_label_names_give_the_order_and_numbers_are_places_in_it(self) -> None:
        found = scheme(["good", 0, "1"], label_names=["bad", "good", "none"])
        assert found.classes.names == ("bad", "good", "none")
        examples = cleaned(["good", 0, "1"], label_names=["bad", "good", "none"])
        assert examples["labels"][:] == [["good"], ["bad"], ["good"]]

    @pytest.mark.parametrize(
        ("names", "found"),
        [
            (["no", "yes"], ["no", "yes"]),
            (["true", "false"], ["false", "true"]),
            (["True", "False"], ["False", "True"]),
        ],
    )
    def test_booleans_are_names_or_places_in_two_of_them(
        self, names: list[str], found: list[str]
    ) -> None:
        examples = cleaned([False, True], label_names=names)
        assert [labels[0] for labels in examples["labels"]] == found

    def test_text_among_the_names_stays_as_it_is(self) -> None:
        examples = cleaned(["1.0", "0.0"], label_names=["0.0", "1.0"])
        assert examples["labels"][:] == [["1.0"], ["0.0"]]

    def test_the_model_learns_the_names(self) -> None:
        assert scheme(["sad", "glad"]).config() == {
            "problem_type": SINGLE,
            "id2label": {0: "glad", 1: "sad"},
            "label2id": {"glad": 0, "sad": 1},
        }
        assert scheme([0.5]).config() == {"problem_type": REGRESSION, "num_labels": 1}

    @pytest.mark.parametrize("labels", [["same", "same"], [[], []]])
    def test_one_label_cannot_be_learnt(self, labels: list[Any]) -> None:
        with fails_with(FailureCode.LABEL_MISMATCH):
            scheme(labels)


class TestTargets:
    @pytest.mark.parametrize(
        ("labels", "targets"),
        [
            (["sad", "glad"], [1, 0]),
            ([["b"], [], ["a", "b"]], [[0, 1], [0, 0], [1, 1]]),
            ([0, 1.5], [0.0, 1.5]),
        ],
    )
    def test_of_each_problem(self, labels: list[Any], targets: list[Any]) -> None:
        assert scheme(labels).targets("train", cleaned(labels)[:]) == targets

    @pytest.mark.parametrize(
        ("train", "other", "problem"),
        [
            (["a", "b"], "c", "the label 'c' does not occur in the training rows"),
            ([["a"], ["b"]], "a", "the label is one label, but others are lists"),
            (["a", "b"], ["a"], "the label is a list, but others are not"),
            (["1.0", "0.0"], 2.5, "has a fraction, but .* set `task.problem_type: regression`"),
            ([0.5], "a", "the label is not a number, but the labels of the training rows are"),
        ],
    )
    def test_a_label_that_does_not_fit(self, train: list[Any], other: Any, problem: str) -> None:
        found, rows = scheme(train), cleaned([other])
        with pytest.raises(RowError, match=problem) as caught:
            found.require(rows[0])
        assert caught.value.code is FailureCode.LABEL_MISMATCH
        with pytest.raises(RowError, match=problem):  # never a class of its own choice
            found.targets("validation", rows[:])
        assert found.targets("test", rows[:]) in ([0], [[0, 0]])


class TestRowCleaner:
    @pytest.mark.parametrize(
        ("row", "parameters", "problem"),
        [
            ({"text": 3, "label": "a"}, {}, "`text` must be text, not int"),
            ({"text": " ", "label": "a"}, {}, "`text` is empty"),
            ({"text": "t", "label": None}, {}, "`label` must be text or a whole number, not null"),
            ({"text": "t", "label": True}, {"label_names": ["a", "b", "c"]}, "'true' is not among"),
            ({"text": "t", "label": " "}, {}, "`label` is empty"),
            ({"text": "t", "label": ["a", None]}, {}, "not null"),
            ({"text": "t", "label": "[a"}, {}, "it is text, but not JSON"),
            ({"text": "t", "label": 1.5}, {"problem_type": SINGLE}, "not float"),
            ({"text": "t", "label": float("nan")}, {"problem_type": REGRESSION}, "a finite number"),
            ({"text": "t", "label": "high"}, {"problem_type": REGRESSION}, "a finite number"),
            ({"text": "t", "label": "c"}, {"label_names": ["a", "b"]}, "'c' is not among"),
            ({"text": "t", "label": 2}, {"label_names": ["a", "b"]}, "2 is not an index into"),
            ({"text": "t\ud800", "label": "a"}, {}, "not valid Unicode"),
        ],
    )
    def test_refuses(self, row: dict[str, Any], parameters: dict[str, Any], problem: str) -> None:
        with pytest.raises(RowError, match=problem):
            RowCleaner("train", TextClassificationSpec(**parameters))(row)

    def test_all_rows_are_pairs_or_none(self) -> None:
        clean = RowCleaner("train", TextClassificationSpec())
        clean({"text": "a", "text_pair": "b", "label": "x"})
        with pytest.raises(RowError, match="`text_pair` must be text, not null"):
            clean({"text": "a", "text_pair": None, "label": "x"})
        clean = RowCleaner("train", TextClassificationSpec())
        clean({"text": "a", "label": "x"})
        with pytest.raises(RowError, match="earlier rows have none"):
            clean({"text": "a", "text_pair": "b", "label": "x"})

    @pytest.mark.parametrize("labels", [[["a"], "a"], ["a", ["a"]], [3, ["a"]], [[], 0.5]])
    def test_all_labels_are_lists_or_none(self, labels: list[Any]) -> None:
        with pytest.raises(RowError, match="but others are") as caught:
            cleaned(labels)
        assert caught.value.code is FailureCode.LABEL_MISMATCH
        clean = RowCleaner("test", TextClassificationSpec())
        assert [clean({"text": "t", "label": v})["form"] != "none" for v in labels] == [True] * 2

    def test_the_test_split_needs_no_label(self) -> None:
        assert RowCleaner("test", TextClassificationSpec())({"text": "a"})["form"] == "none"
