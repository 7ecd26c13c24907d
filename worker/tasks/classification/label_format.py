"""What lists of numbers mean, several labels of a text each: 0/1 vectors or indices of labels."""

from collections.abc import Sequence
from typing import Any, Final

from service.contract.tasks.parameters import TextClassificationSpec
from worker.data.inferences import Inferences
from worker.data.table import Row, RowError
from worker.failures import invalid_option
from worker.tasks.classification import labels

_OPTION: Final = "task.label_format"
_SHOWN: Final = 80
"""Characters of a list in a message."""
_BITS: Final = {"0": 0, "1": 1, "false": 0, "true": 1}


def vector(values: Sequence[Any], column: str, length: int | None) -> list[int]:
    """The entries of a vector as 0 and 1. Raises RowError if there are others, or not `length`."""
    if length is not None and len(values) != length:
        problem = f"`{column}` has {len(values)} entries, but there are {length} labels"
        raise labels.mismatch(problem, "length_mismatch")
    if len(values) < 2:
        problem = f"`{column}` must have an entry for each of two labels or more"
        raise RowError(problem, reason="length_mismatch")
    return [bit(value, column) for value in values]


def bit(value: Any, column: str) -> int:
    """0 or 1 of an entry of a vector: a number, a Boolean, or text from a CSV file."""
    if isinstance(value, str) and not value.strip():
        raise RowError(f"`{column}` is empty", reason="empty_label")
    if isinstance(value, str | bool | int | float):
        found = _BITS.get(str(labels.whole_if_equal(value)).strip().lower())
        if found is not None:
            return found
    problem = f"`{column}` must be 0 or 1 (or false or true) for each label, not {value!r:.80}"
    raise RowError(problem, reason="invalid_label")


class Detector:
    """Reads the labels of all rows and decides the only meaning that all their lists can have.

    It is called with rows like a cleaner. What it cannot read is left to the cleaner, which
    describes what is wrong.
    """

    def __init__(self, parameters: TextClassificationSpec) -> None:
        self._parameters = parameters
        names = parameters.names()
        self._length = None if names is None else len(names)
        """Of a vector."""
        self._numbers: list[Any] | None = None
        """The first list of numbers."""
        self._has_text = False
        self._no_vector: str | None = None
        """Why the lists cannot be vectors; likewise below."""
        self._no_indices: str | None = None
        self.has_labels = False
        self.is_done = False
        """No further row changes the decision."""

    def __call__(self, row: Row) -> dict[str, Any]:
        value = row.get("label")
        self.has_labels |= value is not None
        if labels.looks_like_list(value):
            try:
                self._see(labels.as_list(value, "label"))
            except RowError:
                return {}
        elif value is not None and self._parameters.problem_type is None:
            self.is_done = self._numbers is None  # the first row decides whether they are lists
        return {}

    def _see(self, values: list[Any]) -> None:
        if any(isinstance(each, str) for each in values):
            self._has_text = True
            self._no_vector = self._no_vector or f"{_shown(values)} has text"
            self.is_done = self._numbers is None
        elif all(isinstance(each, int | float) for each in values):
            self._numbers = values if self._numbers is None else self._numbers
            self._length = len(values) if self._length is None else self._length
            self._no_vector = self._no_vector or self._not_a_vector(values)
            self._no_indices = self._no_indices or _not_indices(values)

    def _not_a_vector(self, values: list[Any]) -> str | None:
        if any(each not in (0, 1) for each in values):
            return f"{_shown(values)} has an entry other than 0 and 1"
        if len(values) < 2:
            return f"{_shown(values)} has fewer than two entries"
        if len(values) != self._length:
            return f"{_shown(values)} has {len(values)} entries, not {self._length}"
        return None

    def decided(self, found: Inferences) -> TextClassificationSpec:
        """The parameters, with `label_format: vector` if the lists are vectors. Raises
        StageError(invalid_option) if they can be both vectors and indices, or neither."""
        if self.is_done or self._numbers is None:
            return self._parameters
        if self._no_vector is None and self._no_indices is None:
            raise invalid_option(
                _OPTION,
                f"is needed: {_shown(self._numbers)} can be a `vector`, with an entry for each "
                "label, or a list of `indices`, and so can the lists of all other rows",
            )
        if self._no_vector is not None and self._no_indices is not None:
            raise invalid_option(
                _OPTION,
                "is needed: the lists cannot all be a `vector`, with 0 or 1 for each label, "
                f"because {self._no_vector}; nor all be `indices`, because {self._no_indices}. "
                "Once it is set, the rows that do not fit are listed",
            )
        if self._no_indices is not None:
            found.add(_OPTION, "vector", f"all lists have {self._length} entries, 0 or 1")
            return self._parameters.model_copy(update={"label_format": "vector"})
        if not self._has_text:
            found.add(_OPTION, "indices", f"{self._no_vector}, so the lists are not vectors")
        return self._parameters


def _not_indices(values: list[Any]) -> str | None:
    if any(isinstance(each, bool | float) for each in values) and all(
        each in (0, 1) for each in values
    ):
        return f"{_shown(values)} is not made of whole numbers"
    if len(set(values)) < len(values):
        return f"{_shown(values)} repeats an entry"
    return None


def _shown(values: list[Any]) -> str:
    text = repr(values)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def detector(parameters: TextClassificationSpec) -> Detector | None:
    """None if the labels are not lists, or the spec defines what these mean."""
    is_known = parameters.label_format is not None or parameters.has_vectors()
    several = parameters.problem_type in (None, "multi_label_classification")
    return Detector(parameters) if several and not is_known else None
