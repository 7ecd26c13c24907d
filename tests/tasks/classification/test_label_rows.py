"""Rows of each label, in notices."""

from collections import Counter
from pathlib import Path

import pytest

from service.contract.stage.events import Notice
from tests.tasks.classification.jobs import maker
from worker.tasks.classification import label_rows

MANY = [f"l{number}" for number in range(23)]


def test_enough_of_each_are_no_notice() -> None:
    counted = Counter({"good": 2, "bad": 9})
    assert [*label_rows.of_training(["good", "bad"], counted, "the rows")] == []


def test_many_labels_are_counted_and_the_first_named() -> None:
    [notice] = label_rows.of_training(MANY, {}, "the rows")
    assert notice.message.startswith("None of the rows has the label 'l0', 'l1', 'l2', ")
    assert notice.message.endswith(
        "'l19' and 3 more, so the model does not learn them: add rows that have them, or train "
        "without them"
    )
    assert notice.data == {"labels_without_rows": MANY}
    how_many = label_rows.how_many(MANY, {"l0": 1200}, "the rows")
    assert how_many.message.startswith("Of the rows so many have each label: l0 1,200, l1 0, ")
    assert how_many.message.endswith(", l19 0 and 3 more")


@pytest.mark.parametrize(
    ("counted", "sentence"),
    [
        ({"a": 1}, "1 of the rows has the label 'a', which none of those has: "),
        ({"a": 1, "b": 2, "c": 4}, "3 of the rows have the label 'a' or 'b', which none of "),
    ],
)
def test_labels_that_are_not_trained(counted: dict[str, int], sentence: str) -> None:
    names = ["a", "b", "c"]
    found = [*label_rows.of_validation(names, counted, "the rows", {"c": 5}, "those")]
    assert [each.message.startswith(sentence) for each in found] == [False, True]
    assert [*label_rows.of_validation(names, counted, "the rows", None, "those")] == found[:1]


def test_a_job_reports_them(tmp_path: Path) -> None:
    rows = [{"text": f"number {number}", "label": number % 2} for number in range(12)]
    late = {"text": "two", "label": "2"}
    job = maker(tmp_path, "text-classification")(
        {"train": rows, "validation": [*rows[:3], late], "test": [late]},
        {"label_names": ["0", "1", "2"]},
    )
    job.prepare()
    names = {"rows_of_labels", "labels_without_rows", "labels_not_trained"}
    found = [n for n in job.notices if isinstance(n, Notice) and names & n.data.keys()]
    assert [(notice.message.partition(":")[0], notice.data) for notice in found] == [
        (
            "Of the rows of the train split so many have each label",
            {"rows_of_labels": {"0": 6, "1": 6, "2": 0}},
        ),
        (
            "None of the rows of the train split has the label '2', so the model does not learn it",
            {"labels_without_rows": ["2"]},
        ),
        (
            "Of the rows of the validation split so many have each label",
            {"rows_of_labels": {"0": 2, "1": 1, "2": 1}},
        ),
        (
            "1 of the rows of the validation split has the label '2', which none of the rows of "
            "the train split has",
            {"labels_not_trained": ["2"]},
        ),
    ]
