"""What a row of a question-answering data set must look like."""

import json
from collections.abc import Mapping
from typing import Any

from service.contract.failures import FailureCode
from service.contract.parameters import QuestionAnsweringSpec
from worker.tasks.base import Row, RowError
from worker.tasks.rows import kind_of, text_of


class RowCleaner:
    """Checks the rows of one split; remembers the ids, which must be unique for evaluation."""

    def __init__(self, split: str, parameters: QuestionAnsweringSpec) -> None:
        self._split = split
        self._answerless_allowed = parameters.version_2_with_negative or split == "test"
        self._seen: set[str] = set()
        self._count = 0

    def __call__(self, row: Row) -> dict[str, Any]:
        cleaned: dict[str, Any] = {
            "id": self._id(row.get("id")),
            "question": text_of(row["question"], "question"),
            "context": text_of(row["context"], "context"),
        }
        cleaned["answers"] = _answers(row.get("answers"), cleaned["context"])
        if not cleaned["answers"]["text"] and not self._answerless_allowed:
            raise RowError(
                "the question has no answer, but `task.version_2_with_negative` is false: set it "
                "to true, or remove such questions",
                FailureCode.INVALID_OPTION,
            )
        self._count += 1
        return cleaned

    def _id(self, value: Any) -> str:
        if value is None:
            key = str(self._count)
        elif isinstance(value, str | int) and not isinstance(value, bool):
            key = text_of(str(value), "id")
        else:
            raise RowError(f"`id` must be text or a whole number, not {kind_of(value)}")
        if self._split != "train":  # predictions are told apart by it
            if key in self._seen:
                raise RowError(f"`id` {key!r} occurs a second time")
            self._seen.add(key)
        return key


def _answers(value: Any, context: str) -> dict[str, list[Any]]:
    """{text, answer_start} as lists of equal length whose texts stand in `context` there."""
    if value is None:
        return {"text": [], "answer_start": []}
    if isinstance(value, str):
        value = _answers_in_cell(value)
    if isinstance(value, list):  # SQuAD's own form: a list of objects
        value = _transposed(value)
    if not isinstance(value, Mapping) or not {"text", "answer_start"} <= value.keys():
        raise RowError("`answers` must be an object with `text` and `answer_start`")
    texts, starts = _as_list(value["text"]), _as_list(value["answer_start"])
    if len(texts) != len(starts):
        raise RowError(f"`answers` has {len(texts)} texts but {len(starts)} answer_start")
    for text, start in zip(texts, starts, strict=True):
        _check_answer(text, start, context)
    return {"text": texts, "answer_start": starts}


def _answers_in_cell(value: str) -> Any:
    """CSV has no lists: the cell holds them as JSON text."""
    try:
        return json.loads(value) if value.strip() else {"text": [], "answer_start": []}
    except (ValueError, RecursionError) as error:
        raise RowError("`answers` is text, but not JSON") from error


def _transposed(answers: list[Any]) -> dict[str, list[Any]]:
    if not all(isinstance(a, Mapping) and {"text", "answer_start"} <= a.keys() for a in answers):
        raise RowError("each of `answers` must be an object with `text` and `answer_start`")
    return {name: [answer[name] for answer in answers] for name in ("text", "answer_start")}


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _check_answer(text: Any, start: Any, context: str) -> None:
    text_of(text, "answers.text")
    if not isinstance(start, int) or isinstance(start, bool) or start < 0:
        raise RowError(f"`answers.answer_start` must be a whole number from 0, not {start!r:.50}")
    found = context[start : start + len(text)]
    if found != text:
        raise RowError(
            f"the answer {text!r:.80} does not stand in the context at answer_start {start}: "
            f"there is {found!r:.80}"
        )
