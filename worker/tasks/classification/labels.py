"""Class names: how rows give them, and their order in a model."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from service.contract.failures import FailureCode, StageError
from worker.data.table import RowError
from worker.failures import invalid_option
from worker.tasks.common.cells import any_text, kind_of

_WHOLE: Final = re.compile(r"[-+]?\d{1,18}")
_SHOWN: Final = 20  # names in a message


@dataclass(frozen=True)
class Classes:
    """The classes of a job, in the order of the model's outputs."""

    names: tuple[str, ...]

    @cached_property
    def ids(self) -> Mapping[str, int]:
        return {name: number for number, name in enumerate(self.names)}

    def config(self) -> dict[str, Any]:
        """The fields of a model's configuration that name the classes."""
        return {"id2label": dict(enumerate(self.names)), "label2id": dict(self.ids)}

    def require(self, names: Iterable[str]) -> None:
        """Raises RowError for a label that no training row has."""
        for name in names:
            if name not in self.ids:
                known = f"does not occur in the training rows, which have {_listed(self.names)}"
                raise mismatch(f"the label {name!r:.80} {known}", "unknown_label")


class ModelLabels(list[str]):
    """The labels of a finished model in the order of its outputs, if the job gives none.

    Whole numbers in rows are indices into the list, unless all labels are whole numbers.
    """

    def has_name(self, value: str | int) -> bool:
        """Whether the value of a row is the name of a label, not an index."""
        by_name = isinstance(value, str) or all(map(is_whole, self))
        return by_name and str(value).strip() in self


def of_model(given: Sequence[str] | None, config: Any) -> list[str]:
    """The labels of a trained model. `given` may name the labels of a model that has no names.

    Raises StageError(invalid_option) if both have names and they differ.
    """
    own = ModelLabels(str(config.id2label[number]) for number in range(config.num_labels))
    if given is None:
        return own
    nameless = own == [f"LABEL_{number}" for number in range(len(own))]
    if list(given) == own or (nameless and len(given) == len(own)):
        return list(given)
    raise invalid_option(
        "task.label_names",
        f"are {_listed(given)}, but the model's own labels are {_listed(own)}: "
        "remove `label_names`",
        labels=list(own)[:100],
    )


def settings(names: Sequence[str] | None) -> Any:
    """The part of `label_names` that affects how rows are read; a key of the prepared data."""
    return {"of_model": list(names)} if isinstance(names, ModelLabels) else names


def mismatch(problem: str, reason: str) -> RowError:
    """The error for an unknown label, or one that does not match those of other rows."""
    return RowError(problem, FailureCode.LABEL_MISMATCH, reason=reason)


def classes_of(given: Sequence[str] | None, examples: Any, column: str) -> Classes:
    """The classes of `label_names`, or else those in the lists of `column` in the training rows.

    The latter are sorted: as numbers if all are whole numbers, else as text. Raises StageError
    if there are fewer than two.
    """
    if given is not None:
        return Classes(tuple(given))
    import pyarrow.compute as pc

    table = examples.with_format("arrow").select_columns([column])[:]
    found = [name for name in pc.unique(pc.list_flatten(table[column])).to_pylist() if name]
    if len(found) < 2:
        raise StageError(
            FailureCode.LABEL_MISMATCH,
            f"All training rows have the same label, {found[0]!r:.80}"
            if found
            else "The training rows have no labels",
            labels=found,
        )
    return Classes(tuple(sorted(found, key=int if all(map(is_whole, found)) else str)))


def class_name(value: Any, column: str, names: Sequence[str] | None) -> str:
    """The class that a value of a row names; with `label_names`, a number is an index into them.

    Raises RowError if it is neither text nor a whole number, or not among `names`.
    """
    if isinstance(value, bool) or not isinstance(value, str | int):
        problem = f"`{column}` must be text or a whole number, not {kind_of(value)}"
        raise RowError(problem, reason="invalid_label")
    name = any_text(str(value), column).strip()
    if not name:
        raise RowError(f"`{column}` is empty", reason="empty_label")
    if names is None or (isinstance(value, str) and name in names):
        return name
    if isinstance(names, ModelLabels) and names.has_name(value):
        return name
    listed = "the model's labels" if isinstance(names, ModelLabels) else "`task.label_names`"
    if not is_whole(name):
        raise _unlisted(f"`{column}` {name!r:.80} is not among {listed}: ", names)
    number = int(name)
    if not 0 <= number < len(names):
        raise _unlisted(f"`{column}` {number} is not an index into {listed}: ", names)
    return names[number]


def _unlisted(problem: str, names: Sequence[str]) -> RowError:
    return mismatch(problem + _listed(names), "unknown_label")


def as_list(value: Any, column: str) -> list[Any]:
    """A list, which a cell of a CSV file holds as JSON text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            problem = f"`{column}` must be a list; it is text, but not JSON"
            if value.lstrip().startswith("['"):  # what pandas writes
                problem += ': write ["a", "b"] with double quotation marks, as json.dumps does'
            raise RowError(problem, reason="not_a_list") from error
    if not isinstance(value, list):
        raise RowError(f"`{column}` must be a list, not {kind_of(value)}", reason="not_a_list")
    return value


def is_whole(name: str) -> bool:
    return _WHOLE.fullmatch(name) is not None


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(repr(name) for name in names[:_SHOWN]) + more
