"""The rows that a user gives, and their entries in the task's prediction files."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from service.contract.failures import FailureCode, StageError
from worker.tasks import row_checks

ROWS_FILE: Final = "rows.jsonl"
"""The name that messages have for the rows of one request: `rows.jsonl, line 2` is its second."""
_NBEST = 3
_PLACE: Final = re.compile(rf"(?:{re.escape(ROWS_FILE)}, line|Row) (\d+)(?: of the test split)?")
_OF_ROWS: Final = frozenset({FailureCode.MISSING_COLUMN, FailureCode.UNREADABLE_ROW})


def refused(error: StageError) -> StageError:
    """Of rows in a request: `rows[0]` is the first, and there is no job to submit again."""
    failure = error.failure
    if failure.code not in _OF_ROWS:
        return error
    message = _PLACE.sub(lambda found: f"rows[{int(found[1]) - 1}]", failure.message)
    return StageError(failure.code, message, action="Correct the rows, and ask again.")


def prepared(
    rows: Sequence[Mapping[str, Any]], task: str, columns: Mapping[str, str]
) -> list[dict[str, Any]]:
    """With the task's column names, without labels.

    `columns`: the task's column → the one in the training data, which rows may also have.
    """
    labels = row_checks.ROW_CHECKS[task.partition("/")[0]].labels
    found = []
    for number, given in enumerate(rows):
        row = dict(given)
        for ours, theirs in columns.items():
            if theirs in row and ours not in row:
                row[ours] = row.pop(theirs)
        row = {name: value for name, value in row.items() if name not in labels}
        found.append(row | {"id": str(number)} if _has_ids(task) else row)
    return found


def answers(task: str, files: Mapping[str, Path]) -> list[dict[str, Any]]:
    """One for each row, from the files that a job with `mode: predict` writes."""
    found = _read(files, "predictions.json")
    if not _has_ids(task):
        return [{name: value for name, value in row.items() if name != "row"} for row in found]
    nbest, null_odds = _read(files, "nbest_predictions.json"), _read(files, "null_odds.json")
    return [
        _answer(text, nbest[key]) | ({"null_odds": null_odds[key]} if null_odds else {})
        for key, text in found.items()
    ]


def _has_ids(task: str) -> bool:
    return task.startswith("question-answering")


def _answer(text: str, nbest: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`probability` is None for an answer that is not among the best, as "no answer" may be."""
    own = next((each["probability"] for each in nbest if each["text"] == text), None)
    best = [{name: each[name] for name in ("text", "probability")} for each in nbest[:_NBEST]]
    return {"prediction": text, "probability": own, "nbest": best}


def _read(files: Mapping[str, Path], name: str) -> Any:
    path = files.get(f"test/{name}")
    return {} if path is None else json.loads(path.read_text(encoding="utf-8"))
