"""Expected numbers are what the official evaluation scripts print for the same predictions.

v1.1: `evaluate-v1.1.py data predictions`; v2.0: `evaluate-v2.0.py data predictions
--na-prob-file null_odds --na-prob-thresh 1e30` (a threshold that overrides no prediction).
"""

import json
from pathlib import Path
from typing import Any

from tests.data.squad_sample import squad_rows
from worker.tasks.question_answering import metrics as qa_metrics

GOLDEN = Path(__file__).parent / "golden"

# name, prediction, gold answers
ADVERSARIAL: list[tuple[str, str, list[str]]] = [
    ("unicode", "Café — déjà vu!", ["café déjà vu", "Café"]),
    ("articles", "The an a Answer", ["answer"]),
    ("hyphen", "well-known", ["well known", "wellknown"]),
    ("apostrophe", "o\u2019clock", ["o'clock"]),
    ("empty", "", ["something"]),
    ("only punctuation", "...", ["!!!", "word"]),
    ("only article", "the", ["a"]),
    ("repeat", "one one two", ["one two two", "two"]),
    ("nbsp", "New\u00a0York", ["new york"]),
    ("sharp s", "STRASSE", ["straße"]),
    ("dotted", "İstanbul", ["istanbul"]),
    ("underscore", "a_b the_c", ["ab thec"]),
    ("none right", "", []),
    ("none wrong", "some", []),
    ("none article", "the", []),
    ("tie1", "x", ["x"]),
    ("tie2", "y", ["z"]),
    ("tie3", "", []),
]


def golden(name: str) -> Any:
    """Real output of MiniLM after 120 steps, mixed with perturbed gold answers."""
    return json.loads((GOLDEN / name).read_text())


def golds(version: str) -> dict[str, list[str]]:
    return {row["id"]: row["answers"]["text"] for row in squad_rows("validation", version)}


class TestSquadV1:
    def test_equals_the_official_script_on_written_predictions(self) -> None:
        assert qa_metrics.squad_v1(golds("1.1"), golden("predictions.json")) == {
            "exact_match": 36.25,
            "f1": 45.94230769230769,
        }

    def test_equals_the_official_script_on_adversarial_answers(self) -> None:
        answerable = {name: gold for name, _, gold in ADVERSARIAL if gold}
        predictions = {name: prediction for name, prediction, _ in ADVERSARIAL}
        assert qa_metrics.squad_v1(answerable, predictions) == {
            "exact_match": 50.0,
            "f1": 46.59863945578231,
        }


class TestSquadV2:
    def test_equals_the_official_script_on_written_predictions(self) -> None:
        metrics = qa_metrics.squad_v2(
            golds("2.0"), golden("predictions.json"), golden("null_odds.json")
        )
        assert metrics == {
            "exact_match": 51.5625,
            "f1": 57.62019230769231,
            "total": 128,
            "HasAns_exact": 36.25,
            "HasAns_f1": 45.94230769230769,
            "HasAns_total": 80,
            "NoAns_exact": 77.08333333333333,
            "NoAns_f1": 77.08333333333333,
            "NoAns_total": 48,
            "best_exact": 39.0625,
            "best_exact_thresh": 8.0,
            "best_f1": 43.818108974358964,
            "best_f1_thresh": 8.0,
        }

    def test_equals_the_official_script_on_adversarial_answers_and_tied_odds(self) -> None:
        odds = {row[0]: [-1.5, 0.0, 0.0, 2.25][i % 4] for i, row in enumerate(ADVERSARIAL)}
        metrics = qa_metrics.squad_v2(
            {name: gold for name, _, gold in ADVERSARIAL},
            {name: prediction for name, prediction, _ in ADVERSARIAL},
            odds,
        )
        assert metrics == {
            "exact_match": 50.0,
            "f1": 58.46560846560846,
            "total": 18,
            "HasAns_exact": 42.857142857142854,
            "HasAns_f1": 53.74149659863946,
            "HasAns_total": 14,
            "NoAns_exact": 75.0,
            "NoAns_f1": 75.0,
            "NoAns_total": 4,
            "best_exact": 44.44444444444444,
            "best_exact_thresh": 0.0,
            "best_f1": 52.91005291005292,
            "best_f1_thresh": 2.25,
        }

    def test_leaves_out_a_group_without_questions(self) -> None:
        metrics = qa_metrics.squad_v2({"a": ["x"]}, {"a": "x"}, {"a": -1.0})
        assert "NoAns_total" not in metrics
        assert metrics["HasAns_exact"] == metrics["exact_match"] == 100.0
