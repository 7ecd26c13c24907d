"""The required columns and the row cleaner of each task.

Needs no tokenizer and no large library, so that the API server can check an upload.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from service.contract.spec.splits import TEST
from service.contract.tasks.tasks import TASKS
from worker.data.cleaning import Columns
from worker.data.column_names import ColumnFinder, UsualNames
from worker.data.inferences import Inferences
from worker.data.table import Cleaner
from worker.tasks.chat import rows as chat_rows
from worker.tasks.classification import label_format, text_rows, token_rows
from worker.tasks.common.cells import any_text
from worker.tasks.preference import rows as preference_rows
from worker.tasks.question_answering import rows as qa_rows
from worker.tasks.seq2seq import rows as seq2seq_rows
from worker.tasks.usual_columns import USUAL


@dataclass(frozen=True)
class RowCheck:
    inputs: tuple[str, ...]
    """Columns that every row must have."""
    labels: tuple[str, ...]
    """Columns that rows must also have, except in the test split."""
    cleaner: Callable[[str, Any], Cleaner]
    """(split, the task's parameters) → a function that is called once with every row of the split,
    in order. Its rows have the task's own column names."""

    detector: Callable[[Any], label_format.Detector | None] = lambda _parameters: None
    """The task's parameters → what must read all rows before the cleaner is called with the first;
    None if the parameters leave nothing open."""

    def required(self, split: str) -> tuple[str, ...]:
        """The columns that `split` must have."""
        return self.inputs if split == TEST else self.inputs + self.labels


def _language_model(_split: str, _parameters: Any) -> Cleaner:
    """Any text is valid, even an empty one: it may be the line between two paragraphs."""
    return lambda row: {"text": any_text(row["text"], "text")}


ROW_CHECKS: Final[dict[str, RowCheck]] = {
    "question-answering": RowCheck(("question", "context"), ("answers",), qa_rows.RowCleaner),
    "causal-lm": RowCheck(("text",), (), _language_model),
    "masked-lm": RowCheck(("text",), (), _language_model),
    "text-classification": RowCheck(
        ("text",), ("label",), text_rows.RowCleaner, label_format.detector
    ),
    "token-classification": RowCheck(("tokens",), ("tags",), token_rows.RowCleaner),
    "summarization": RowCheck(("text",), ("summary",), seq2seq_rows.summarization),
    # Rows have one of several forms; the cleaner checks which.
    "translation": RowCheck((), (), seq2seq_rows.translation),
    "chat": RowCheck((), (), chat_rows.RowCleaner),
    "preference": RowCheck((), (), preference_rows.RowCleaner),
    "reward": RowCheck((), (), preference_rows.RewardRowCleaner),
}


def columns(task: str, split: str, mapping: Mapping[str, str], parameters: Any) -> Columns:
    """The columns of `task`; `mapping` has the user's names for some of them."""
    described = TASKS[task].columns
    required = set(ROW_CHECKS[task].required(split))
    spared = {column.name for column in described if column.required} - required
    known = [column.name for column in described]
    found = Columns.from_mapping(known, required, spared, mapping)
    listed: list[str] | None = getattr(parameters, "label_columns", None)
    return found if listed is None else _with_label_columns(found, listed)


def finder(task: str, mapping: Mapping[str, str], inferences: Inferences) -> ColumnFinder:
    """Finds the columns of `task` that `mapping` leaves open; of one job."""
    return ColumnFinder(USUAL.get(task, UsualNames()), mapping, inferences)


def _with_label_columns(found: Columns, listed: Sequence[str]) -> Columns:
    """With these in place of the column `label`."""
    ours = {text_rows.label_column(name): name for name in listed}
    names = {name: theirs for name, theirs in found.names.items() if name != "label"}
    is_needed = "label" in found.needed
    needed = found.needed - {"label"} | (ours.keys() if is_needed else set())
    return Columns({**names, **ours}, frozenset(needed), frozenset(ours))


def decided(
    task: str,
    parameters: Any,
    splits: Mapping[str, Callable[[label_format.Detector], Iterator[Any]]],
    found: Inferences,
) -> Any:
    """The task's parameters, completed by the only meaning that all rows together can have.

    `splits`: split → a function that reads its rows, calling a cleaner with each. Raises StageError
    if they do not decide.
    """
    detector = ROW_CHECKS[task].detector(parameters)
    if detector is None:
        return parameters
    for split, rows in splits.items():
        for _row in rows(detector):
            if detector.is_done or (split == TEST and not detector.has_labels):
                break
        if detector.is_done:
            break
    return detector.decided(found)
