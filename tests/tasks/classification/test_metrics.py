"""worker.tasks.classification.metrics, against scikit-learn and scipy."""

import math

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics

from worker.tasks.classification import metrics


def draws(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


class TestSingleLabel:
    @pytest.mark.parametrize("classes", [2, 3, 7])
    @pytest.mark.parametrize("seed", range(5))
    def test_equals_scikit_learn(self, classes: int, seed: int) -> None:
        gold = draws(seed).integers(classes, size=40)
        predicted = np.where(draws(seed + 9).random(40) < 0.6, gold, (gold + 1) % classes)
        found = metrics.single_label(gold, predicted, classes)
        f1 = sklearn.metrics.f1_score
        expected = {
            "accuracy": sklearn.metrics.accuracy_score(gold, predicted),
            "f1": f1(gold, predicted, average="binary" if classes == 2 else "macro"),
            "f1_macro": f1(gold, predicted, average="macro"),
            "f1_weighted": f1(gold, predicted, average="weighted"),
            "matthews_correlation": sklearn.metrics.matthews_corrcoef(gold, predicted),
        }
        assert found == pytest.approx(expected, rel=1e-14, abs=1e-15)

    def test_classes_that_never_occur_do_not_count(self) -> None:
        gold, predicted = np.array([0, 0, 2]), np.array([0, 2, 2])
        found = metrics.single_label(gold, predicted, 9)
        assert found["f1_macro"] == sklearn.metrics.f1_score(gold, predicted, average="macro")

    def test_one_class_everywhere(self) -> None:
        zeros = np.zeros(4, dtype=np.int64)
        found = metrics.single_label(zeros, zeros, 2)
        assert found == {
            "accuracy": 1.0,
            "f1": 0.0,
            "f1_macro": 1.0,
            "f1_weighted": 1.0,
            "matthews_correlation": 0.0,
        }


class TestMultiLabel:
    @pytest.mark.parametrize("seed", range(5))
    def test_equals_scikit_learn(self, seed: int) -> None:
        gold = draws(seed).integers(2, size=(30, 4))
        predicted = np.where(draws(seed + 9).random((30, 4)) < 0.7, gold, 1 - gold)
        gold[:, 3] = predicted[:, 3] = 0  # a label that no row has
        found = metrics.multi_label(gold, predicted)
        f1 = sklearn.metrics.f1_score
        micro = f1(gold, predicted, average="micro")
        expected = {
            "accuracy": sklearn.metrics.accuracy_score(gold, predicted),
            "f1": micro,
            "f1_micro": micro,
            "f1_macro": f1(gold, predicted, average="macro", zero_division=0),
            "f1_weighted": f1(gold, predicted, average="weighted", zero_division=0),
        }
        assert found == pytest.approx(expected, rel=1e-14)

    def test_nothing_anywhere(self) -> None:
        none = np.zeros((3, 2), dtype=np.int64)
        assert metrics.multi_label(none, none) == {
            "accuracy": 1.0,
            "f1": 0.0,
            "f1_micro": 0.0,
            "f1_macro": 0.0,
            "f1_weighted": 0.0,
        }


class TestRegression:
    @pytest.mark.parametrize("seed", range(5))
    def test_equals_scipy(self, seed: int) -> None:
        gold = draws(seed).normal(size=50).round(1)  # with ties
        predicted = gold + draws(seed + 9).normal(size=50).round(1)
        found = metrics.regression(gold, predicted)
        assert found["pearson"] == pytest.approx(
            scipy.stats.pearsonr(gold, predicted).statistic, rel=1e-13
        )
        assert found["spearmanr"] == pytest.approx(
            scipy.stats.spearmanr(gold, predicted).statistic, rel=1e-13
        )

    def test_a_constant_has_no_correlation(self) -> None:
        found = metrics.regression(np.array([1.0, 2.0]), np.array([3.0, 3.0]))
        assert all(math.isnan(value) for value in found.values())
