"""Turns start and end logits into answers and the n-best spans of each question, vectorised."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

# Candidates per chunk; keeps temporary arrays below some tens of megabytes.
_CANDIDATES_AT_ONCE = 1_000_000


@dataclass(frozen=True)
class SpanOptions:
    n_best_size: int
    max_answer_length: int
    """In tokens."""


@dataclass(frozen=True)
class WindowBatch:
    """The outputs of `n` windows; arrays have the shape (n, length) unless noted otherwise."""

    features: Integers
    """(n,) index of each window among all windows."""
    examples: Integers
    """(n,) index of the question that each window belongs to."""
    start_logits: Floats
    end_logits: Floats
    starts: Integers
    """The offset of each token's first character; -1 for tokens outside the context."""
    ends: Integers
    """The offset after each token's last character, likewise."""
    nulls: Integers
    """(n,) index of the token that means "no answer"."""


@dataclass(frozen=True)
class Spans:
    """Candidate spans as columns, one row each; a null answer has `start` and `end` 0."""

    feature: Integers
    example: Integers
    start: Integers
    end: Integers
    start_logit: Floats
    end_logit: Floats

    @property
    def score(self) -> Floats:
        return self.start_logit + self.end_logit

    def take(self, index: Any) -> "Spans":
        return Spans(**{name: column[index] for name, column in vars(self).items()})


@dataclass(frozen=True)
class Answers:
    """All dictionaries are keyed by question id."""

    predictions: dict[str, str]
    nbest: dict[str, list[dict[str, Any]]]
    null_odds: dict[str, float]
    """The null score minus the best span's score; empty unless questions may have no answer."""


def concatenate(parts: Sequence[Spans]) -> Spans:
    columns = {
        name: np.concatenate([vars(part)[name] for part in parts]) for name in vars(parts[0])
    }
    return Spans(**columns)


def best_spans(batch: WindowBatch, options: SpanOptions) -> Spans:
    """The best `n_best_size` spans of every window, best first within a window.

    Candidates are all pairs of the best starts and the best ends. Ties between logits are broken by
    position, ties between scores by the rank of the start, then of the end.
    """
    count = min(options.n_best_size, batch.start_logits.shape[1])
    rows_at_once = max(1, _CANDIDATES_AT_ONCE // count**2)
    parts = [
        _best_spans(_rows(batch, slice(first, first + rows_at_once)), options, count)
        for first in range(0, len(batch.features), rows_at_once)
    ]
    return concatenate(parts)


def null_spans(batch: WindowBatch) -> Spans:
    """The null answer of every window."""
    row = np.arange(len(batch.features))
    zeros = np.zeros(len(row), dtype=np.int64)
    return Spans(
        feature=batch.features,
        example=batch.examples,
        start=zeros,
        end=zeros,
        start_logit=batch.start_logits[row, batch.nulls],
        end_logit=batch.end_logits[row, batch.nulls],
    )


def choose(
    questions: Sequence[Mapping[str, str]],
    spans: Spans,
    nulls: Spans | None,
    options: SpanOptions,
    null_threshold: float,
) -> Answers:
    """The answer to every question (`id`, `context`) from the best spans of its windows.

    With `nulls` (v2) a question may have no answer: its null score is the lowest of its windows,
    and the null answer is predicted if it beats the best span by more than `null_threshold`. The
    answer to a question without any admissible span is "".
    """
    ordered, bounds = ranked(spans, len(questions))
    lowest = None if nulls is None else _lowest_nulls(nulls, len(questions))
    answers = Answers({}, {}, {})
    for index, question in enumerate(questions):
        own = ordered.take(slice(bounds[index], bounds[index + 1]))
        null = None if lowest is None else lowest.take(slice(index, index + 1))
        nbest = nbest_of(question["context"], own, null, options.n_best_size)
        best = next((entry for entry in nbest if entry["text"]), None)
        if null is not None:
            answers.null_odds[question["id"]] = odds = _null_odds(null, best)
            best = None if odds > null_threshold else best
        answers.predictions[question["id"]] = best["text"] if best else ""
        answers.nbest[question["id"]] = nbest
    return answers


def _rows(batch: WindowBatch, rows: slice) -> WindowBatch:
    return WindowBatch(**{name: column[rows] for name, column in vars(batch).items()})


def _best_spans(batch: WindowBatch, options: SpanOptions, count: int) -> Spans:
    row = np.arange(len(batch.features))[:, None]
    first = _largest(batch.start_logits, count)  # (n, count) token positions
    last = _largest(batch.end_logits, count)
    start_logit = batch.start_logits[row, first][:, :, None]
    end_logit = batch.end_logits[row, last][:, None, :]
    length = last[:, None, :] - first[:, :, None] + 1
    admissible = (
        (batch.starts[row, first] >= 0)[:, :, None]
        & (batch.starts[row, last] >= 0)[:, None, :]
        & (length >= 1)
        & (length <= options.max_answer_length)
    )
    with np.errstate(over="ignore"):  # both may be those of padding, the least of all numbers
        score = np.where(admissible, start_logit + end_logit, -np.inf).reshape(len(row), -1)
    chosen = _largest(score, options.n_best_size)  # (n, at most n_best_size) indices of pairs
    keep = np.take_along_axis(admissible.reshape(score.shape), chosen, axis=1)
    rows, columns = np.nonzero(keep)  # in row order, best first
    start_rank, end_rank = np.divmod(chosen[rows, columns], count)
    starts, ends = first[rows, start_rank], last[rows, end_rank]
    return Spans(
        feature=batch.features[rows],
        example=batch.examples[rows],
        start=batch.starts[rows, starts],
        end=batch.ends[rows, ends],
        start_logit=batch.start_logits[rows, starts],
        end_logit=batch.end_logits[rows, ends],
    )


def _largest(values: Floats, count: int) -> Integers:
    """(n, count) indices of the largest values of each row, largest first, NaN last."""
    order: Integers = np.argsort(-values, axis=1, kind="stable")[:, :count]
    return order


def ranked(spans: Spans, examples: int) -> tuple[Spans, Integers]:
    """Spans by question, best first, and (examples + 1,) index of each question's first span."""
    # lexsort is stable and its last key is the primary one. Windows may arrive in any order.
    position = np.arange(len(spans.feature))
    order = np.lexsort((position, spans.feature, -spans.score, spans.example))
    ordered = spans.take(order)
    return ordered, np.searchsorted(ordered.example, np.arange(examples + 1))


def _lowest_nulls(nulls: Spans, examples: int) -> Spans:
    """For each question the null answer with the lowest score, of its first window in a tie."""
    order = np.lexsort((nulls.feature, nulls.score, nulls.example))
    ordered = nulls.take(order)
    return ordered.take(np.searchsorted(ordered.example, np.arange(examples)))


def nbest_of(context: str, spans: Spans, null: Spans | None, size: int) -> list[dict[str, Any]]:
    """At most `size` answers, best first, plus the null answer if it is not among them."""
    own = spans.take(slice(0, size))
    if null is not None:
        # In a tie the null answer comes after the spans.
        place = int(np.searchsorted(-own.score, -null.score[0], side="right"))
        parts = [own.take(slice(0, place)), null, own.take(slice(place, None))]
        own = concatenate(parts)
        if place < size:
            own = own.take(slice(0, size))
        else:
            own = concatenate([own.take(slice(0, size)), null])
    scores = own.score
    weights = np.exp(scores - np.max(scores)) if len(scores) else scores
    probabilities = weights / weights.sum() if len(scores) else scores
    return [
        {
            "text": context[own.start[rank] : own.end[rank]],
            "probability": float(probabilities[rank]),
            "start_logit": float(own.start_logit[rank]),
            "end_logit": float(own.end_logit[rank]),
        }
        for rank in range(len(scores))
    ]


def _null_odds(null: Spans, best: Mapping[str, Any] | None) -> float:
    score = null.score[0]
    if best is None:
        return float(score)
    # In float32 throughout, as the logits are.
    return float(score - np.float32(best["start_logit"]) - np.float32(best["end_logit"]))
