"""Exact match and F1 as the official SQuAD evaluations define them, v1.1 and v2.0.

Sums and quotients are computed in the same order as in the official scripts, so that the results on
the same predictions are equal to the last digit.
"""

import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)

Golds = Mapping[str, Sequence[str]]
"""Question id → gold answers, in the order of the data set; empty for an unanswerable question."""
Predictions = Mapping[str, str]


def words(answer: str) -> list[str]:
    """The normalized words: lower case, without ASCII punctuation and English articles."""
    return _ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split()


def squad_v1(golds: Golds, predictions: Predictions) -> dict[str, float]:
    """`exact_match` and `f1` in percent. Every question needs a gold answer and a prediction."""
    exact = f1 = 0.0
    for key, answers in golds.items():
        predicted = words(predictions[key])
        split_answers = [words(answer) for answer in answers]
        exact += max(float(predicted == answer) for answer in split_answers)
        f1 += max(_overlap(predicted, answer) for answer in split_answers)
    return {"exact_match": 100.0 * exact / len(golds), "f1": 100.0 * f1 / len(golds)}


def squad_v2(
    golds: Golds, predictions: Predictions, null_odds: Mapping[str, float]
) -> dict[str, float]:
    """Percentages over all, answerable (HasAns) and unanswerable (NoAns) questions.

    Names are those of the official script, except `exact_match` for its `exact`. The best
    thresholds are found on these predictions with `null_odds` as its `--na-prob-file`: the highest
    odds at which a prediction is kept instead of "no answer".
    """
    exact, f1 = _raw_scores(golds, predictions)
    groups = {
        "": list(golds),
        "HasAns_": [key for key, answers in golds.items() if answers],
        "NoAns_": [key for key, answers in golds.items() if not answers],
    }
    metrics: dict[str, float] = {}
    for prefix, keys in groups.items():
        if keys:
            name = f"{prefix}exact" if prefix else "exact_match"
            metrics[name] = 100.0 * sum(exact[key] for key in keys) / len(keys)
            metrics[f"{prefix}f1"] = 100.0 * sum(f1[key] for key in keys) / len(keys)
            metrics[f"{prefix}total"] = float(len(keys))
    by_odds = sorted(null_odds, key=lambda key: null_odds[key])
    for name, scores in (("exact", exact), ("f1", f1)):
        best, threshold = _best_threshold(golds, predictions, scores, by_odds, null_odds)
        metrics[f"best_{name}"] = best
        metrics[f"best_{name}_thresh"] = threshold
    return metrics


def _raw_scores(
    golds: Golds, predictions: Predictions
) -> tuple[dict[str, float], dict[str, float]]:
    exact: dict[str, float] = {}
    f1: dict[str, float] = {}
    for key, answers in golds.items():
        predicted = words(predictions[key])
        # An answer of only articles and punctuation counts as no answer.
        split_answers = [found for found in map(words, answers) if found] or [[]]
        exact[key] = max(float(predicted == answer) for answer in split_answers)
        f1[key] = max(_overlap_or_both_empty(predicted, answer) for answer in split_answers)
    return exact, f1


def _overlap(predicted: list[str], gold: list[str]) -> float:
    """F1 of two bags of words; 0 if they share nothing, even if both are empty (v1.1)."""
    shared = sum((Counter(predicted) & Counter(gold)).values())
    if shared == 0:
        return 0.0
    precision = shared / len(predicted)
    recall = shared / len(gold)
    return (2 * precision * recall) / (precision + recall)


def _overlap_or_both_empty(predicted: list[str], gold: list[str]) -> float:
    if not predicted or not gold:
        return float(predicted == gold)
    return _overlap(predicted, gold)


def _best_threshold(
    golds: Golds,
    predictions: Predictions,
    scores: Mapping[str, float],
    by_odds: Iterable[str],
    null_odds: Mapping[str, float],
) -> tuple[float, float]:
    """(best score in percent, threshold): start without answers, add them by increasing odds."""
    score = best = float(sum(not answers for answers in golds.values()))
    threshold = 0.0
    for key in by_odds:
        if golds[key]:
            score += scores[key]
        elif predictions[key]:
            score -= 1
        if score > best:
            best, threshold = score, null_odds[key]
    return 100.0 * best / len(scores), threshold
