"""Cleans rows of text-classification data sets and determines the type of their labels."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from service.contract.failures import FailureCode, StageError
from service.contract.spec.splits import TEST
from service.contract.tasks.parameters import ProblemType, TextClassificationSpec
from worker.data.inferences import Inferences
from worker.data.table import Row, RowError
from worker.tasks.classification import label_format, label_rows, labels
from worker.tasks.classification.labels import Classes
from worker.tasks.common.cells import any_text, text_of

SINGLE: Final = "single_label_classification"
MULTI: Final = "multi_label_classification"
REGRESSION: Final = "regression"
VECTOR: Final = "vector"
LISTS: Final = ("names", VECTOR)
"""Forms of several labels."""

_FRACTION: Final = re.compile(r"[-+]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][-+]?\d{1,3})?")


class RowCleaner:
    """Checks rows one by one; `Scheme` checks their labels together once all rows are read."""

    def __init__(self, split: str, parameters: TextClassificationSpec) -> None:
        self._is_test = split == TEST
        self._problem = parameters.known_problem()
        self._names = parameters.names()
        self._format = parameters.label_format
        self._columns = parameters.label_columns
        self._length = len(self._names) if self._names is not None else None
        """Of vectors; the first row decides where the labels have no names."""
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
        cleaned |= self._label_of_test(row) if self._is_test else self._label_of(row)
        self._require_same_form(cleaned)
        return cleaned

    def _require_same_form(self, cleaned: Row) -> None:
        """Require the form of the first usable row."""
        if self._pairs is None:
            self._pairs = cleaned["text_pair"] is not None
        if self._is_test:
            return
        lists = cleaned["form"] in LISTS
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
            return self._label_of(row)
        except RowError:
            return {}

    def _label_of(self, row: Row) -> dict[str, Any]:
        if self._columns is None:
            return self._label(row.get("label"))
        bits = [label_format.bit(row.get(label_column(name)), name) for name in self._columns]
        return self._vector(bits)

    def _label(self, value: Any) -> dict[str, Any]:
        """`form` is the form of the label: vector, names, name, whole or fraction."""
        if self._problem == MULTI or (self._problem is None and labels.looks_like_list(value)):
            return self._several(labels.as_list(value, "label"))
        value = labels.whole_if_equal(value, self._names)
        number = _number(value)
        if self._problem == REGRESSION:
            if number is None:
                problem = f"`label` must be a finite number, not {value!r:.80}"
                raise RowError(problem, reason="invalid_label")
            return {"number": number, "form": "fraction"}
        if isinstance(value, float) and number is not None and self._problem is None:
            return {"labels": [str(value)], "number": number, "form": "fraction"}
        name = labels.class_name(value, "label", self._names, self._format)
        form = "name" if number is None else "fraction" if _has_fraction(value) else "whole"
        return {"labels": [name], "number": number, "form": form}

    def _several(self, values: list[Any]) -> dict[str, Any]:
        if self._format == "vector":
            return self._vector(label_format.vector(values, "label", self._length))
        found = [labels.class_name(each, "label", self._names, self._format) for each in values]
        names = dict.fromkeys(found)
        if len(names) < len(found) and any(map(_is_number, values)):
            problem = (
                f"`label` repeats an entry: {values!r:.80}. If it is a vector, with 0 or 1 for "
                "each label, set `task.label_format: vector`"
            )
            raise RowError(problem, reason="repeated_label")
        return {"labels": list(names), "form": "names"}

    def _vector(self, bits: Sequence[int]) -> dict[str, Any]:
        """`number` is the length, which is that of the model's outputs."""
        self._length = len(bits)
        names = vector_names(len(bits)) if self._names is None else self._names
        chosen = [name for name, is_set in zip(names, bits, strict=True) if is_set]
        return {"labels": chosen, "number": float(len(bits)), "form": VECTOR}


def vector_names(length: int) -> list[str]:
    """The names of labels that have only places."""
    return [str(number) for number in range(length)]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or labels.is_whole(str(value).strip())


def _other_form(*, is_list: bool) -> RowError:
    one, others = ("a list", "not") if is_list else ("one label", "lists")
    return labels.mismatch(f"the label is {one}, but others are {others}", "mixed_labels")


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
    def from_examples(cls, parameters: TextClassificationSpec, examples: Any) -> "Scheme":
        names = parameters.names()
        problem = parameters.known_problem() or _problem_of(examples, names)
        if problem == REGRESSION:
            return cls(problem, Classes(()))
        if names is None and problem == MULTI:
            names = _places(examples)
        return cls(problem, labels.classes_of(names, examples, "labels"))

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
        if self.problem == REGRESSION and set(rows["number"]) == {-1.0}:
            return False  # how GLUE marks that the scores of a test set are not published
        return all(row["form"] != "none" and self._fits(row) for row in rows)

    def require(self, row: Row) -> None:
        """Raises RowError if a cleaned row's label does not match those of the training rows."""
        if self.problem == REGRESSION:
            if row["number"] is None:
                problem = "the label is not a number, but the labels of the training rows are"
                raise labels.mismatch(problem, "mixed_labels")
            return
        if (self.problem == MULTI) != (row["form"] in LISTS):
            raise _other_form(is_list=row["form"] in LISTS)
        if row["form"] == VECTOR and row["number"] != len(self.classes.names):
            entries = f"the vector has {row['number']:.0f} entries"
            problem = f"{entries}, but there are {len(self.classes.names)} labels"
            raise labels.mismatch(problem, "length_mismatch")
        if row["form"] == "fraction" and all(map(labels.is_whole, self.classes.names)):
            problem = (
                f"the label {row['labels'][0]:.80} has a fraction, but those of the training rows "
                "are whole numbers, which are classes: to predict a number, set "
                "`task.problem_type: regression`"
            )
            raise labels.mismatch(problem, "mixed_labels")
        self.classes.require(row["labels"])

    def _fits(self, row: Row) -> bool:
        try:
            self.require(row)
        except RowError:
            return False
        return True

    def _target_of_test(self, row: Row) -> Any:
        fits = row["form"] != "none" and self._fits(row)
        if fits:
            return self._target(row)
        return [0] * len(self.classes.names) if self.problem == MULTI else 0

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


def label_column(name: str) -> str:
    """The task's name of one of `label_columns`."""
    return f"label.{name}"


def infer(parameters: TextClassificationSpec, examples: Any, found: Inferences) -> None:
    """Add what the training rows decide."""
    scheme = Scheme.from_examples(parameters, examples)
    names = parameters.names()
    if parameters.known_problem() is None:
        found.add("task.problem_type", scheme.problem, _reason(scheme, _forms(examples)))
    if scheme.problem == REGRESSION:
        return
    places = _places(examples) if names is None and scheme.problem == MULTI else None
    if places is not None:
        listed = label_rows.listed(places, labels.counts(examples, "labels"))
        reason = f"the places in the vectors; rows of each: {listed}"
        found.add("task.label_names", places, reason)
    else:
        labels.infer_names(names, scheme.classes, examples, "labels", found)


def _reason(scheme: Scheme, forms: set[str]) -> str:
    if scheme.problem == MULTI:
        return "the labels are lists"
    if scheme.problem == REGRESSION:
        return "the labels are numbers, some with a fraction"
    if forms == {"whole"}:
        return (
            "all labels are whole numbers, each a class. To predict a number instead, set "
            "`task.problem_type: regression`"
        )
    return "each row has one label"


def _forms(examples: Any) -> set[str]:
    import pyarrow.compute as pc

    column = examples.with_format("arrow").select_columns(["form"])[:]["form"]
    return set(pc.unique(column).to_pylist())


def _places(examples: Any) -> list[str] | None:
    """The names of labels that are given as vectors; None if they are not."""
    import pyarrow.compute as pc

    columns = examples.with_format("arrow").select_columns(["form", "number"])[:]
    lengths = columns["number"].filter(pc.equal(columns["form"], VECTOR))
    return vector_names(int(pc.max(lengths).as_py())) if len(lengths) else None


def _problem_of(examples: Any, names: Sequence[str] | None) -> ProblemType:
    forms = _forms(examples)
    if not forms.isdisjoint(LISTS):
        return MULTI
    numbers = forms <= {"whole", "fraction"} and "fraction" in forms
    return REGRESSION if numbers and names is None else SINGLE
