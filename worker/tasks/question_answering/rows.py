"""Cleans the rows of question-answering data sets."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from service.contract.failures import FailureCode
from service.contract.parameters import QuestionAnsweringSpec
from worker.data.table import Row, RowError
from worker.tasks.common.cells import kind_of, text_of

REALIGNED_WITHIN: Final = 100
"""How far from its `answer_start` an answer is searched for, in characters."""
_WHOLE: Final = re.compile(r"(\d{1,18})(\.0+)?")
"""pandas writes 7.0 in a column that has empty cells."""


class RowCleaner:
    """Checks the rows of one split; ids must be unique, except in the training split."""

    def __init__(self, split: str, parameters: QuestionAnsweringSpec) -> None:
        self._split = split
        self._answerless_allowed = parameters.version_2_with_negative or split == "test"
        self._ids: set[str] = set()
        self._count = 0
        self.counts: Counter[str] = Counter()
        """`realigned`: the number of answers found near but not at their `answer_start`."""

    def __call__(self, row: Row) -> dict[str, Any]:
        cleaned: dict[str, Any] = {
            "id": self._id(row.get("id")),
            "question": text_of(row["question"], "question"),
            "context": text_of(row["context"], "context"),
        }
        cleaned["answers"], realigned = _answers(
            row.get("answers"), row.get("answer_start"), cleaned["context"]
        )
        if not cleaned["answers"]["text"] and not self._answerless_allowed:
            raise RowError(
                "the question has no answer, but `task.version_2_with_negative` is false: set it "
                "to true, or remove such questions",
                FailureCode.INVALID_OPTION,
                reason="no_answer",
            )
        # Only usable rows are counted.
        self._count += 1
        self.counts["realigned"] += realigned
        if self._split != "train":
            self._ids.add(cleaned["id"])
        return cleaned

    def _id(self, value: Any) -> str:
        if value is None:
            key = str(self._count)
        elif isinstance(value, str | int) and not isinstance(value, bool):
            key = text_of(str(value), "id")
        else:
            problem = f"`id` must be text or a whole number, not {kind_of(value)}"
            raise RowError(problem, reason="invalid_id")
        if key in self._ids:  # predictions are keyed by id
            raise RowError(f"`id` {key!r:.80} occurs more than once", reason="repeated_id")
        return key


def _answers(value: Any, start: Any, context: str) -> tuple[dict[str, list[Any]], int]:
    """{text, answer_start} as lists of equal length, aligned with `context`, and how many answers
    were realigned."""
    if value is None:
        return {"text": [], "answer_start": []}, 0
    if isinstance(value, str):
        value = _answers_in_cell(value, start, context)
    if isinstance(value, list):  # SQuAD's own form: a list of objects
        if not all(isinstance(a, Mapping) and {"text", "answer_start"} <= a.keys() for a in value):
            raise _invalid("each of `answers` must be an object with `text` and `answer_start`")
        value = {name: [each[name] for each in value] for name in ("text", "answer_start")}
    if not isinstance(value, Mapping) or not {"text", "answer_start"} <= value.keys():
        raise _invalid("`answers` must be an object with `text` and `answer_start`")
    texts, starts = _as_list(value["text"]), _as_list(value["answer_start"])
    if len(texts) != len(starts):
        raise _invalid(
            f"`answers` has {len(texts)} values of `text` but {len(starts)} of `answer_start`"
        )
    given = list(zip(texts, starts, strict=True))
    found = [_locate(text, start, context) for text, start in given]
    answers: dict[str, list[Any]] = {"text": [text for text, _ in found]}
    answers["answer_start"] = [start for _, start in found]
    return answers, sum(one != other for one, other in zip(given, found, strict=True))


def _invalid(problem: str) -> RowError:
    return RowError(problem, reason="invalid_answers")


def _answers_in_cell(value: str, start: Any, context: str) -> Any:
    """Parse the cell of a CSV file: the answers as JSON text, or the text of one answer."""
    if not value.strip():
        return {"text": [], "answer_start": []}
    if not value.lstrip().startswith(("{", "[")):
        text = value.strip()
        return {"text": [text], "answer_start": [_start_of(text, start, context)]}
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise _invalid("`answers` is text, but not JSON") from error


def _start_of(answer: str, start: Any, context: str) -> Any:
    """As given in `answer_start`, or the only place of the answer in the context."""
    if isinstance(start, str):
        whole = _WHOLE.fullmatch(start.strip())
        start = int(whole[1]) if whole else start.strip() or None
    if isinstance(start, float) and start.is_integer():
        start = int(start)
    if start is not None:
        return start
    found = context.count(answer)
    if found == 0:
        problem = f"the answer {answer!r:.80} is not in the context, letter for letter"
        raise RowError(problem, reason="answer_not_found")
    if found > 1:
        raise RowError(
            f"the answer {answer!r:.80} is in the context {found} times: add a column "
            "`answer_start` with the number of characters before the right one",
            reason="ambiguous_answer",
        )
    return context.index(answer)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _locate(text: Any, start: Any, context: str) -> tuple[str, int]:
    """The answer and its offset: as given, or at its nearest occurrence.

    The search ignores white space around the answer.
    """
    text_of(text, "answers.text")
    if not isinstance(start, int) or isinstance(start, bool) or start < 0:
        raise _invalid(
            f"`answers.answer_start` must be a whole number of at least 0, not {start!r:.50}"
        )
    if context[start : start + len(text)] == text:
        return text, start
    core = text.strip()
    expected = start + len(text) - len(text.lstrip())
    nearest = min(
        _occurrences(core, expected, context), key=lambda at: abs(at - expected), default=None
    )
    if nearest is None:
        raise RowError(
            f"the answer {text!r:.80} is not in the context within {REALIGNED_WITHIN} characters "
            f"of answer_start {start}: there is {context[start : start + len(text)]!r:.80}",
            reason="answer_not_found",
        )
    return core, nearest


def _occurrences(core: str, expected: int, context: str) -> Iterator[int]:
    """The offsets of `core` in `context` near `expected`, in ascending order."""
    first = max(0, expected - REALIGNED_WITHIN)
    last = expected + REALIGNED_WITHIN + len(core)
    at = context.find(core, first, last)
    while at >= 0:
        yield at
        at = context.find(core, at + 1, last)
