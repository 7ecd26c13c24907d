"""`metric_for_best_model` where the rows decide which metrics there are, before a GPU is needed."""

from typing import Any

import datasets
import pytest

from service.contract.failures import FailureCode
from service.contract.spec.spec import JobSpec
from tests.training.support.jobs import fails_with
from worker.stages.prepare import best_metric
from worker.tasks import registry
from worker.tasks.base import PreparedSplit
from worker.tasks.classification import span_metrics

Rows = list[dict[str, Any]]


def words(*rows: str) -> Rows:
    return [{"tokens": row.split(), "tags": row.split()} for row in rows]


def texts(form: str, *labels: Any) -> Rows:
    """As cleaned rows are stored."""
    return [
        {
            "labels": each if isinstance(each, list) else [str(each)],
            "number": each if isinstance(each, float) else None,
            "form": form,
        }
        for each in labels
    ]


def questions(*answers: list[str]) -> Rows:
    return [{"answers": {"text": each, "answer_start": [0] * len(each)}} for each in answers]


def require(
    task: str, metric: str, train: Rows, validation: Rows | dict[str, Rows], mode: str = "train"
) -> None:
    """`validation`: one set, or several by their names."""
    kind, _, version = task.partition("/")
    sets: Any = dict.fromkeys(validation, "v") if isinstance(validation, dict) else "v"
    rows = validation if isinstance(validation, dict) else {"": validation}
    body = {
        "mode": mode,
        "task": {"type": kind, **({"version_2_with_negative": True} if version else {})},
        "model": {"name_or_path": "org/model"},
        "dataset": {"source": "hub", "name": "org/data", "validation": sets},
        "training": {"eval_strategy": "epoch", "metric_for_best_model": metric},
    }
    spec = JobSpec.model_validate(body)
    names = {f"validation.{name}".rstrip("."): part for name, part in rows.items()}
    splits = {
        name: PreparedSplit(examples=datasets.Dataset.from_list(part), features=None)
        for name, part in ({"train": train} | names).items()
    }
    best_metric.require_reported(spec, registry.get(spec.variant()), splits)


NAMES = texts("name", "good", "bad")
LISTS = texts("names", ["good"], ["good", "bad"])
NUMBERS = texts("fraction", 0.5, 1.25)
PLACES = words("O B-LOC I-LOC", "B-PER O")
PARTS = words("NOUN VERB", "VERB NOUN")
V2 = "question-answering/v2"


@pytest.mark.parametrize(
    ("task", "metric", "train", "validation"),
    [
        ("text-classification", "matthews_correlation", NAMES, NAMES),
        ("text-classification", "f1_micro", LISTS, LISTS),
        ("text-classification", "eval_pearson", NUMBERS, NUMBERS),
        ("token-classification", "f1", PLACES, PLACES),
        ("token-classification", "eval_PER_f1", PLACES, words("B-PER")),
        ("token-classification", "accuracy", PARTS, PARTS),
        (V2, "NoAns_f1", questions(["a"]), questions(["a"], [])),
        (V2, "best_f1", questions(["a"]), questions(["a"])),
        ("question-answering", "exact_match", questions(["a"]), questions(["a"])),
    ],
)
def test_what_is_reported(task: str, metric: str, train: Rows, validation: Rows) -> None:
    require(task, metric, train, validation)


@pytest.mark.parametrize(
    ("task", "metric", "train", "validation", "reported"),
    [
        ("text-classification", "f1_micro", NAMES, NAMES, "accuracy, f1, f1_macro"),
        ("text-classification", "matthews_correlation", LISTS, LISTS, "accuracy, f1, f1_macro"),
        ("text-classification", "accuracy", NUMBERS, NUMBERS, "loss, pearson, spearmanr"),
        ("token-classification", "f1", PARTS, PARTS, "accuracy, loss"),
        ("token-classification", "LOC_f1", PLACES, words("B-PER"), "PER_f1, PER_number"),
        (V2, "NoAns_f1", questions(["a"]), questions(["a"]), "HasAns_exact, HasAns_f1"),
        (V2, "HasAns_f1", questions(["a"]), questions([]), "NoAns_exact, NoAns_f1"),
    ],
)
def test_what_is_not(task: str, metric: str, train: Rows, validation: Rows, reported: str) -> None:
    message = rf"`training.metric_for_best_model` is `{metric}`, .* reports only: .*{reported}"
    with fails_with(FailureCode.INVALID_OPTION, message):
        require(task, metric, train, validation)


def test_of_several_sets_each_has_its_own() -> None:
    sets = {"easy": words("B-PER"), "hard": words("B-LOC")}
    require("token-classification", "easy_PER_f1", PLACES, sets)
    with fails_with(FailureCode.INVALID_OPTION, "is `easy_LOC_f1`"):
        require("token-classification", "easy_LOC_f1", PLACES, sets)


def test_a_job_that_does_not_train_chooses_no_model() -> None:
    require("token-classification", "f1", PARTS, PARTS, mode="evaluate")


def test_names_are_those_of_the_scores() -> None:
    golds = [["B-PER", "I-PER", "O"], ["B-a/b", "B"]]
    names = span_metrics.names_of_types({tag for row in golds for tag in row})
    found = span_metrics.scores(golds, golds)
    assert {"precision", "recall", "f1", *names} == found.keys()
