from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from worker.tasks.question_answering import postprocessing
from worker.tasks.question_answering.postprocessing import (
    Answers,
    SpanOptions,
    WindowBatch,
    best_spans,
    choose,
    concatenate,
    null_spans,
)

CONTEXT = "".join(chr(97 + number % 26) for number in range(400))


@dataclass
class Case:
    """Random windows of some questions; token t of a window stands for CONTEXT[offset …]."""

    questions: list[dict[str, str]]
    batch: WindowBatch


def make_case(seed: int, *, coarse: bool = False) -> Case:
    """`coarse` logits have few values, so that many spans tie."""
    random = np.random.default_rng(seed)
    windows, length, questions = 23, 40, 9
    examples = np.sort(random.integers(0, questions, windows))
    examples[:questions] = np.arange(questions)
    examples.sort()
    logits = random.normal(size=(2, windows, length)).astype(np.float32)
    if coarse:
        logits = np.round(logits)
    starts = np.tile(np.arange(length) * 2, (windows, 1)) + 20 * np.arange(windows)[:, None] % 200
    ends = starts + 2
    question = random.integers(2, 12, windows)[:, None]
    outside = np.arange(length) < question
    starts, ends = np.where(outside, -1, starts), np.where(outside, -1, ends)
    batch = WindowBatch(
        features=np.arange(windows),
        examples=examples,
        start_logits=logits[0],
        end_logits=logits[1],
        starts=starts,
        ends=ends,
        nulls=np.zeros(windows, dtype=np.int64),
    )
    return Case([{"id": f"q{n}", "context": CONTEXT} for n in range(questions)], batch)


def answers_of(case: Case, options: SpanOptions, threshold: float | None, size: int) -> Answers:
    """Ours, fed in batches of `size` in a shuffled order."""
    order = np.random.default_rng(size).permutation(len(case.batch.features))
    spans, nulls = [], []
    for first in range(0, len(order), size):
        rows = order[first : first + size]
        part = WindowBatch(**{name: column[rows] for name, column in vars(case.batch).items()})
        spans.append(best_spans(part, options))
        nulls.append(null_spans(part))
    null = None if threshold is None else concatenate(nulls)
    return choose(case.questions, concatenate(spans), null, options, threshold or 0.0)


def slow_answers(case: Case, options: SpanOptions, threshold: float | None) -> Answers:
    """The same, window by window and pair by pair."""
    answers = Answers({}, {}, {})
    for number, question in enumerate(case.questions):
        candidates: list[tuple[Any, ...]] = []
        nulls: list[tuple[Any, ...]] = []
        for window in np.flatnonzero(case.batch.examples == number):
            start, end = case.batch.start_logits[window], case.batch.end_logits[window]
            nulls.append((start[0] + end[0], start[0], end[0], ""))
            for s in np.argsort(-start, kind="stable")[: options.n_best_size]:
                for e in np.argsort(-end, kind="stable")[: options.n_best_size]:
                    inside = case.batch.starts[window, s] >= 0 and case.batch.starts[window, e] >= 0
                    if inside and 1 <= e - s + 1 <= options.max_answer_length:
                        first, last = case.batch.starts[window, s], case.batch.ends[window, e]
                        text = question["context"][first:last]
                        candidates.append((start[s] + end[e], start[s], end[e], text))
        null = min(nulls, key=lambda entry: entry[0])
        if threshold is not None:
            candidates.append(null)
        ranked = sorted(candidates, key=lambda entry: entry[0], reverse=True)
        ranked = ranked[: options.n_best_size]
        if threshold is not None and null not in ranked:
            ranked.append(null)
        _record(answers, question["id"], ranked, null, threshold)
    return answers


def _record(
    answers: Answers, key: str, ranked: list[Any], null: Any, threshold: float | None
) -> None:
    scores = np.array([entry[0] for entry in ranked])
    weights = np.exp(scores - scores.max())
    answers.nbest[key] = [
        {
            "text": e[3],
            "probability": float(p),
            "start_logit": float(e[1]),
            "end_logit": float(e[2]),
        }
        for e, p in zip(ranked, weights / weights.sum(), strict=True)
    ]
    best = next(entry for entry in ranked if entry[3])
    prediction = best[3]
    if threshold is not None:
        odds = answers.null_odds[key] = float(null[0] - best[1] - best[2])
        prediction = "" if odds > threshold else prediction
    answers.predictions[key] = prediction


class TestAgainstTheSlowVersion:
    @pytest.mark.parametrize("threshold", [None, -0.5, 0.0, 3.0])
    @pytest.mark.parametrize(
        "options", [SpanOptions(20, 30), SpanOptions(8, 12), SpanOptions(99, 7)]
    )
    @pytest.mark.parametrize("size", [1, 7, 100])
    def test_random_logits(self, options: SpanOptions, threshold: float | None, size: int) -> None:
        case = make_case(seed=size)
        assert answers_of(case, options, threshold, size) == slow_answers(case, options, threshold)

    def test_a_few_windows_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        options, case = SpanOptions(8, 12), make_case(seed=3)
        monkeypatch.setattr(postprocessing, "_CANDIDATES_AT_ONCE", 3 * 8**2)
        assert answers_of(case, options, 0.0, 100) == slow_answers(case, options, 0.0)

    @pytest.mark.parametrize("seed", range(5))
    def test_tied_scores_come_in_the_same_order(self, seed: int) -> None:
        case = make_case(seed, coarse=True)
        options = SpanOptions(10, 15)
        assert answers_of(case, options, None, 4) == slow_answers(case, options, None)


def one_window(start: list[float], end: list[float], starts: list[int]) -> WindowBatch:
    return WindowBatch(
        features=np.array([0]),
        examples=np.array([0]),
        start_logits=np.array([start], dtype=np.float32),
        end_logits=np.array([end], dtype=np.float32),
        starts=np.array([starts]),
        ends=np.array([[s + 2 if s >= 0 else -1 for s in starts]]),
        nulls=np.array([0]),
    )


class TestChoose:
    QUESTION: tuple[dict[str, str], ...] = ({"id": "q", "context": "ab cd ef"},)
    OPTIONS = SpanOptions(20, 30)

    def choose(self, batch: WindowBatch, *, v2: bool, threshold: float = 0.0) -> Answers:
        nulls = null_spans(batch) if v2 else None
        spans = best_spans(batch, self.OPTIONS)
        return choose(self.QUESTION, spans, nulls, self.OPTIONS, threshold)

    def test_the_threshold_decides_between_null_and_span(self) -> None:
        batch = one_window([1, 0, 3, 0], [1, 0, 0, 2.5], [-1, 0, 3, 6])
        assert self.choose(batch, v2=True).null_odds == {"q": -3.5}
        assert self.choose(batch, v2=True, threshold=-3.5).predictions == {"q": "cd ef"}
        assert self.choose(batch, v2=True, threshold=-3.75).predictions == {"q": ""}

    def test_an_answer_may_begin_with_the_context(self) -> None:
        batch = one_window([0, 9, 3, 0], [0, 9, 0, 2.5], [-1, 0, 3, 6])
        assert self.choose(batch, v2=False).predictions == {"q": "ab"}

    def test_padding_of_a_short_text_does_not_overflow(self) -> None:
        least = float(np.finfo(np.float32).min)
        batch = one_window([1, 0, 3, least], [1, 0, 4, least], [-1, 0, 3, -1])
        assert self.choose(batch, v2=False).predictions == {"q": "cd"}

    def test_no_admissible_span_means_no_answer(self) -> None:
        nothing = one_window([1, 2], [2, 1], [-1, -1])
        assert self.choose(nothing, v2=False) == Answers({"q": ""}, {"q": []}, {})
        found = self.choose(nothing, v2=True)
        assert (found.predictions, found.null_odds) == ({"q": ""}, {"q": 3.0})
        assert [entry["probability"] for entry in found.nbest["q"]] == [1.0]

    def test_an_answer_may_not_run_backwards_or_too_long(self) -> None:
        batch = one_window([0, 0, 0, 9], [0, 9, 0, 1], [-1, 0, 3, 6])
        assert self.choose(batch, v2=False).predictions == {"q": "ef"}
