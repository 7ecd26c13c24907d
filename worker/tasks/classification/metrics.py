"""Classification and regression metrics, equal to those of scikit-learn and scipy.

As there by default, a quotient without a denominator is 0 and an undefined correlation is NaN.
"""

from typing import Any, Final

import numpy as np

Integers = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]

_POSITIVE: Final = 1  # the positive class of binary F1


def single_label(gold: Integers, predicted: Integers, classes: int) -> dict[str, float]:
    """Metrics of two vectors of class ids. `f1` is binary F1 with two classes, else macro F1.

    Macro and weighted F1 run over the classes that occur in either vector.
    """
    table = confusion(gold, predicted, classes)
    right, golds, guesses = table.diagonal(), table.sum(axis=1), table.sum(axis=0)
    f1 = _ratio(2.0 * right, golds + guesses)
    occurring = (golds + guesses) > 0
    macro = float(f1[occurring].mean())
    return {
        "accuracy": float(right.sum() / table.sum()),
        "f1": float(f1[_POSITIVE]) if classes == 2 else macro,
        "f1_macro": macro,
        "f1_weighted": float(np.average(f1, weights=golds)),
        "matthews_correlation": _matthews(table),
    }


def multi_label(gold: Integers, predicted: Integers) -> dict[str, float]:
    """Metrics of two (rows, classes) tables of 0 and 1. `f1` is micro F1; for `accuracy` a row
    must be correct in every class."""
    right = (gold & predicted).sum(axis=0)
    golds, guesses = gold.sum(axis=0), predicted.sum(axis=0)
    f1 = _ratio(2.0 * right, golds + guesses)
    all_right, of_all = np.array([2.0 * right.sum()]), np.array([golds.sum() + guesses.sum()])
    micro = float(_ratio(all_right, of_all)[0])
    return {
        "accuracy": float((gold == predicted).all(axis=1).mean()),
        "f1": micro,
        "f1_micro": micro,
        "f1_macro": float(f1.mean()),
        "f1_weighted": float(np.average(f1, weights=golds)) if golds.any() else 0.0,
    }


def regression(gold: Floats, predicted: Floats) -> dict[str, float]:
    return {
        "pearson": _pearson(gold, predicted),
        "spearmanr": _pearson(_ranks(gold), _ranks(predicted)),
    }


def confusion(gold: Integers, predicted: Integers, classes: int) -> Integers:
    """(classes, classes) confusion matrix, gold classes in rows."""
    cells = np.bincount(gold * classes + predicted, minlength=classes * classes)
    return cells.reshape(classes, classes)


def _ratio(above: Any, below: Any) -> Floats:
    ratio: Floats = np.divide(above, below, out=np.zeros(len(above)), where=below > 0)
    return ratio


def _matthews(table: Integers) -> float:
    """The multi-class form; 0 if either side has only one class."""
    golds, guesses = table.sum(axis=1, dtype=np.float64), table.sum(axis=0, dtype=np.float64)
    right, total = float(table.trace()), float(table.sum())
    both = total**2 - guesses @ guesses, total**2 - golds @ golds
    if both[0] * both[1] == 0:
        return 0.0
    return float((right * total - golds @ guesses) / np.sqrt(both[0] * both[1]))


def _pearson(left: Floats, right: Floats) -> float:
    """NaN for fewer than two values or if one side is constant."""
    if len(left) < 2 or np.ptp(left) == 0 or np.ptp(right) == 0:
        return float("nan")
    left, right = left - left.mean(), right - right.mean()
    scaled = left / np.linalg.norm(left), right / np.linalg.norm(right)
    return float(np.clip(scaled[0] @ scaled[1], -1.0, 1.0))


def _ranks(values: Floats) -> Floats:
    """Ranks from 1; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Floats = (counts.cumsum() - (counts - 1) / 2)[inverse]
    return ranks
