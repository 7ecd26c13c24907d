"""worker.tasks.classification.span_metrics, against seqeval."""

import numpy as np
import pytest
from seqeval.metrics import classification_report
from seqeval.metrics.sequence_labeling import get_entities

from worker.tasks.classification import span_metrics

TAGS = ["O", "B-PER", "I-PER", "E-PER", "S-PER", "B-LOC", "I-LOC", "E-LOC", "B", "I"]


def random_rows(seed: int, count: int) -> list[list[str]]:
    draw = np.random.default_rng(seed)
    return [
        [TAGS[i] for i in draw.integers(len(TAGS), size=draw.integers(1, 30))] for _ in range(count)
    ]


class TestChunks:
    def test_iob2(self) -> None:
        tags = ["B-PER", "I-PER", "O", "B-LOC", "B-LOC", "I-PER"]
        assert span_metrics.chunks(tags) == [
            (0, 1, "PER"),
            (3, 3, "LOC"),
            (4, 4, "LOC"),
            (5, 5, "PER"),
        ]

    @pytest.mark.parametrize("seed", range(20))
    def test_finds_what_seqeval_finds_in_any_tags(self, seed: int) -> None:
        for tags in random_rows(seed, 5):
            expected = [(first, last, type_) for type_, first, last in get_entities(list(tags))]
            assert span_metrics.chunks(tags) == expected


class TestScores:
    @pytest.mark.parametrize("seed", range(10))
    def test_equal_seqeval(self, seed: int) -> None:
        golds = random_rows(seed, 12)
        draw = np.random.default_rng(seed + 100)
        guesses = [[t if draw.random() < 0.8 else "O" for t in tags] for tags in golds]
        report = classification_report(golds, guesses, output_dict=True, zero_division=0)
        found = span_metrics.scores(golds, guesses)
        for type_ in ("PER", "LOC", "_"):
            for name in ("precision", "recall"):
                assert found[f"{type_}_{name}"] == report[type_][name]
            assert found[f"{type_}_f1"] == pytest.approx(report[type_]["f1-score"], rel=1e-15)
            assert found[f"{type_}_number"] == report[type_]["support"]
        assert found["precision"] == report["micro avg"]["precision"]
        assert found["recall"] == report["micro avg"]["recall"]
        assert found["f1"] == pytest.approx(report["micro avg"]["f1-score"], rel=1e-15)

    def test_nothing_to_find_and_nothing_found(self) -> None:
        assert span_metrics.scores([["O", "O"]], [["O", "O"]]) == {
            "precision": 0.0,
            "recall": 0.0,
            "f1": 0.0,
        }

    def test_names_that_a_metric_cannot_have_are_mended(self) -> None:
        found = span_metrics.scores([["B-a/b:c"]], [["O"]])
        assert found["a_b_c_recall"] == 0.0


@pytest.mark.parametrize(
    ("names", "expected"),
    [(["O", "B-X", "I-X"], True), (["B", "I", "O"], True), (["NOUN", "VERB"], False)],
)
def test_is_chunk_scheme(names: list[str], expected: bool) -> None:
    assert span_metrics.is_chunk_scheme(names) is expected
