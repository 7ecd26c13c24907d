"""Cleans the rows of question-answering data sets."""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

from service.contract.failures import FailureCode
from service.contract.tasks.parameters import QuestionAnsweringSpec
from worker.data.table import Row, RowError
from worker.tasks.common.cells import kind_of, text_of

REALIGNED_WITHIN: Final = 100
"""How far from its `answer_start` an answer is searched for, in characters."""
_WHOLE: Final = re.compile(r"(-?\d{1,18})(\.0+)?")
"""pandas writes 7.0 in a column that has empty cells."""
_NONE: Final = '{"text": [], "answer_start": []}'
_Form = Literal["NFC", "NFD"]
_FORMS: Final[tuple[tuple[_Form, _Form], ...]] = (("NFC", "NFD"), ("NFD", "NFC"))


class RowCleaner:
    """Checks the rows of one split; ids must be unique, except in the training split."""

    def __init__(self, split: str, parameters: QuestionAnsweringSpec) -> None:
        self._split = split
        self._answerless_allowed = parameters.version_2_with_negative or split == "test"
        self._ids: set[str] = set()
        self._count = 0
        self.counts: Counter[str] = Counter()
        """`realigned`: the number of answers found near but not at their `answer_start`;
        `other_normal_form`: of those that the context writes with other code points;
        `marked_unanswerable`: of rows whose answer is empty, at -1."""

    def __call__(self, row: Row) -> dict[str, Any]:
        cleaned: dict[str, Any] = {
            "id": self._id(row.get("id")),
            "question": text_of(row["question"], "question"),
            "context": text_of(row["context"], "context"),
        }
        found: Counter[str] = Counter(realigned=0)
        cleaned["answers"] = _answers(
            row.get("answers"), row.get("answer_start"), cleaned["context"], found
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
        self.counts.update(found)
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


def _answers(value: Any, start: Any, context: str, counts: Counter[str]) -> dict[str, list[Any]]:
    """{text, answer_start} as lists of equal length, aligned with `context`. Adds to `counts`."""
    if value is None:
        return {"text": [], "answer_start": []}
    if isinstance(value, str):
        value = _answers_in_cell(value, start, context)
    if isinstance(value, list):  # SQuAD's own form: a list of objects
        if not all(isinstance(a, Mapping) and {"text", "answer_start"} <= a.keys() for a in value):
            raise _invalid("each of `answers` must be an object with `text` and `answer_start`")
        value = {name: [each[name] for each in value] for name in ("text", "answer_start")}
    if not isinstance(value, Mapping) or not {"text", "answer_start"} <= value.keys():
        raise _invalid("`answers` must be an object with `text` and `answer_start`")
    texts = _as_list(value["text"])
    starts = [_whole(each) for each in _as_list(value["answer_start"])]
    if starts and all(each == -1 for each in starts) and not any(map(_is_filled, texts)):
        counts["marked_unanswerable"] += 1
        return {"text": [], "answer_start": []}
    if len(texts) != len(starts):
        raise _invalid(
            f"`answers` has {len(texts)} values of `text` but {len(starts)} of `answer_start`"
        )
    found = [
        _locate(text, start, context, counts) for text, start in zip(texts, starts, strict=True)
    ]
    return {"text": [text for text, _ in found], "answer_start": [start for _, start in found]}


def _is_filled(text: Any) -> bool:
    return not isinstance(text, str) or bool(text.strip())


def _whole(start: Any) -> Any:
    """The whole number that a float or a text stands for; anything else as it is."""
    if isinstance(start, str):
        whole = _WHOLE.fullmatch(start.strip())
        return int(whole[1]) if whole else start
    return int(start) if isinstance(start, float) and start.is_integer() else start


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
    if start is not None and not (isinstance(start, str) and not start.strip()):
        return start
    forms = (answer, *(unicodedata.normalize(form, answer) for form, _ in _FORMS))
    written = next((form for form in forms if form in context), answer)
    found = context.count(written)
    if found == 0:
        problem = f"the answer {answer!r:.80} is not in the context, letter for letter"
        raise RowError(problem, reason="answer_not_found")
    if found > 1:
        raise RowError(
            f"the answer {answer!r:.80} is in the context {found} times: add a column "
            "`answer_start` with the number of characters before the right one",
            reason="ambiguous_answer",
        )
    return context.index(written)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _locate(text: Any, start: Any, context: str, counts: Counter[str]) -> tuple[str, int]:
    """The answer and its offset: as given, or at its nearest occurrence. Adds to `counts`.

    The search ignores white space around the answer, and then the Unicode normal form.
    """
    if not _is_filled(text):
        problem = f"`answers.text` is empty: a question without an answer has `answers: {_NONE}`"
        raise RowError(problem, reason="empty_text")
    text_of(text, "answers.text")
    if not isinstance(start, int) or isinstance(start, bool) or start < 0:
        raise _invalid(
            f"`answers.answer_start` must be a whole number of at least 0, not {start!r:.50}"
        )
    if context[start : start + len(text)] == text:
        return text, start
    core = text.strip()
    expected = start + len(text) - len(text.lstrip())
    nearest = _nearest(core, expected, context)
    if nearest is not None:
        counts["realigned"] += 1
        return core, nearest
    found = _in_other_form(core, expected, context)
    if found is not None:
        counts["other_normal_form"] += 1
        return found
    raise RowError(
        f"the answer {text!r:.80} is not in the context within {REALIGNED_WITHIN} characters "
        f"of answer_start {start}: there is {context[start : start + len(text)]!r:.80}",
        reason="answer_not_found",
    )


def _in_other_form(core: str, expected: int, context: str) -> tuple[str, int] | None:
    """The answer as the context writes it, which may have composed characters (NFC) where the
    answer has letters with combining marks (NFD), or the reverse. `expected` may count the
    characters of either."""
    for form, other in _FORMS:
        written = unicodedata.normalize(form, core)
        if written == core:
            continue
        before = unicodedata.normalize(other, context)[:expected]
        places = (expected, len(unicodedata.normalize(form, before)))
        exact = (place for place in places if context.startswith(written, place))
        near = (_nearest(written, place, context) for place in places)
        found = next((place for place in (*exact, *near) if place is not None), None)
        if found is not None:
            return written, found
    return None


def _nearest(core: str, expected: int, context: str) -> int | None:
    """Of two that are equally near the earlier one."""
    found = _occurrences(core, expected, context)
    return min(found, key=lambda at: abs(at - expected), default=None)


def _occurrences(core: str, expected: int, context: str) -> Iterator[int]:
    """The offsets of `core` in `context` near `expected`, in ascending order."""
    first = max(0, expected - REALIGNED_WITHIN)
    last = expected + REALIGNED_WITHIN + len(core)
    at = context.find(core, first, last)
    while at >= 0:
        yield at
        at = context.find(core, at + 1, last)
