"""Cleans rows of text-classification data sets and determines the type of their labels."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from service.contract.failures import FailureCode, StageError
from service.contract.parameters import ProblemType, TextClassificationSpec
from service.contract.splits import TEST
from worker.data.table import Row, RowError
from worker.tasks.classification import labels
from worker.tasks.classification.labels import Classes
from worker.tasks.common.cells import any_text, text_of

SINGLE: Final = "single_label_classification"
MULTI: Final = "multi_label_classification"
REGRESSION: Final = "regression"

_FRACTION: Final = re.compile(r"[-+]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][-+]?\d{1,3})?")


class RowCleaner:
    """Checks rows one by one; `Scheme` checks their labels together once all rows are read."""

    def __init__(self, split: str, parameters: TextClassificationSpec) -> None:
        self._is_test = split == TEST
        self._problem = parameters.problem_type
        self._names = parameters.label_names
        self._pairs: bool | None = None
        """Whether the rows have two texts; the first row decides."""
        self._lists: bool | None = None
        """Whether the labels are lists; the first row decides."""

    def __call__(self, row: Row) -> dict[str, Any]:
        cleaned: dict[str, Any] = {
            "text": text_of(row["text"], "text"),
            "text_pair": self._pair(row.get("text_pair")),
            "labels": [],
            "number": None,
            "form": "none",
        }
        cleaned |= self._label_of_test(row) if self._is_test else self._label(row["label"])
        self._require_same_form(cleaned)
        return cleaned

    def _require_same_form(self, cleaned: Row) -> None:
        """Require the form of the first usable row."""
        if self._pairs is None:
            self._pairs = cleaned["text_pair"] is not None
        if self._is_test:
            return
        lists = cleaned["form"] == "names"
        if self._lists is None:
            self._lists = lists
        if self._lists != lists:
            raise _other_form(is_list=lists)

    def _pair(self, value: Any) -> str | None:
        if value is not None and self._pairs is False:
            problem = "`text_pair` is present, but earlier rows have none"
            raise RowError(problem, reason="unexpected_pair")
        return any_text(value, "text_pair") if value is not None or self._pairs else None

    def _label_of_test(self, row: Row) -> dict[str, Any]:
        """Rows to predict need no label; an invalid one is ignored."""
        try:
            return {} if row.get("label") is None else self._label(row["label"])
        except RowError:
            return {}

    def _label(self, value: Any) -> dict[str, Any]:
        """`form` is the form of the label: names, name, whole or fraction."""
        if self._problem == MULTI or (self._problem is None and _looks_like_list(value)):
            values = labels.as_list(value, "label")
            found = [labels.class_name(each, "label", self._names) for each in values]
            return {"labels": list(dict.fromkeys(found)), "form": "names"}
        number = _number(value)
        if self._problem == REGRESSION:
            if number is None:
                problem = f"`label` must be a finite number, not {value!r:.80}"
                raise RowError(problem, reason="invalid_label")
            return {"number": number, "form": "fraction"}
        if isinstance(value, float) and number is not None and self._problem is None:
            return {"labels": [str(value)], "number": number, "form": "fraction"}
        if isinstance(value, float) and value.is_integer():  # whole numbers in a column with nulls
            value = int(value)
        name = labels.class_name(value, "label", self._names)
        form = "name" if number is None else "fraction" if _has_fraction(value) else "whole"
        return {"labels": [name], "number": number, "form": form}


def _other_form(*, is_list: bool) -> RowError:
    one, others = ("a list", "no lists") if is_list else ("one label", "lists")
    return labels.mismatch(f"the label is {one}, but others are {others}", "mixed_labels")


def _looks_like_list(value: Any) -> bool:
    return isinstance(value, list) or (isinstance(value, str) and value.lstrip().startswith("["))


def _has_fraction(value: Any) -> bool:
    return isinstance(value, str) and _FRACTION.fullmatch(value.strip()) is not None


def _number(value: Any) -> float | None:
    """The finite number in a value, which may be text from a CSV file."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    if isinstance(value, str) and not (labels.is_whole(value.strip()) or _has_fraction(value)):
        return None
    try:
        number = float(value)
    except OverflowError:  # a whole number of more than 308 digits
        return None
    return number if math.isfinite(number) else None


@dataclass(frozen=True)
class Scheme:
    """The problem type and the classes of a job; depends only on its options and training rows."""

    problem: ProblemType
    classes: Classes
    """Empty for regression."""

    @classmethod
    def of(cls, parameters: TextClassificationSpec, examples: Any) -> "Scheme":
        problem = parameters.problem_type or _problem_of(examples, parameters.label_names)
        if problem == REGRESSION:
            return cls(problem, Classes(()))
        return cls(problem, labels.classes_of(parameters.label_names, examples, "labels"))

    def config(self) -> dict[str, Any]:
        named = self.classes.config() if self.classes.names else {"num_labels": 1}
        return {"problem_type": self.problem, **named}

    def target_type(self) -> Any:
        from datasets import List, Value

        single: dict[str, Any] = {SINGLE: Value("int32"), REGRESSION: Value("float32")}
        return single.get(self.problem, List(Value("int8")))

    def targets(self, split: str, rows: Mapping[str, Sequence[Any]]) -> list[Any]:
        """The target of each row: a class id, a list of 0 and 1, or a number.

        A row of the test split without a known label gets a placeholder.
        """
        columns = ("form", "labels", "number")
        target = self._target_of_test if split == TEST else self._target
        found = zip(*(rows[name] for name in columns), strict=True)
        return [target(dict(zip(columns, row, strict=True))) for row in found]

    def has_labels(self, examples: Any) -> bool:
        """Whether every row has a label that the model knows."""
        rows = examples.select_columns(["form", "labels", "number"])
        return all(row["form"] != "none" and self._fits(row) for row in rows)

    def require(self, row: Row) -> None:
        """Raises RowError if a cleaned row's label does not match those of the training rows."""
        if self.problem == REGRESSION:
            if row["number"] is None:
                problem = "the label is not a number, but the labels of the training rows are"
                raise labels.mismatch(problem, "mixed_labels")
            return
        if (self.problem == MULTI) != (row["form"] == "names"):
            raise _other_form(is_list=row["form"] == "names")
        self.classes.require(row["labels"])

    def _fits(self, row: Row) -> bool:
        try:
            self.require(row)
        except RowError:
            return False
        return True

    def _target_of_test(self, row: Row) -> Any:
        fits = row["form"] != "none" and self._fits(row)
        return self._target(row) if fits else self._placeholder()

    def _target(self, row: Row) -> Any:
        self.require(row)
        if self.problem == REGRESSION:
            return row["number"]
        ids = [self.classes.ids[name] for name in row["labels"]]
        if self.problem == SINGLE:
            return ids[0]
        hot = [0] * len(self.classes.names)
        for class_id in ids:
            hot[class_id] = 1
        return hot

    def _placeholder(self) -> Any:
        return [0] * len(self.classes.names) if self.problem == MULTI else 0


def problem_of_model(given: ProblemType | None, config: Any) -> ProblemType:
    """The problem type of a trained model; as in transformers, a single output means regression.

    Raises StageError(invalid_option) if the outputs do not match the job's problem type.
    """
    problem: ProblemType = (
        given or config.problem_type or (REGRESSION if config.num_labels == 1 else SINGLE)
    )
    if problem != MULTI and (problem == REGRESSION) != (config.num_labels == 1):
        raise StageError(
            FailureCode.INVALID_OPTION,
            f"`task.problem_type` is `{problem}`, but the model has {config.num_labels} outputs",
            option="task.problem_type",
        )
    return problem


def _problem_of(examples: Any, names: Sequence[str] | None) -> ProblemType:
    import pyarrow.compute as pc

    column = examples.with_format("arrow").select_columns(["form"])[:]["form"]
    forms = set(pc.unique(column).to_pylist())
    if "names" in forms:
        return MULTI
    numbers = forms <= {"whole", "fraction"} and "fraction" in forms
    return REGRESSION if numbers and names is None else SINGLE
