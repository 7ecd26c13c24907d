"""Class names: how rows give them, and their order in a model."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, Final

from service.contract.failures import FailureCode, StageError
from service.contract.stage.events import Notice
from service.contract.tasks.parameters import LabelFormat
from worker.data.inferences import Inferences
from worker.data.table import RowError
from worker.failures import invalid_option
from worker.tasks.classification import label_rows
from worker.tasks.common.cells import any_text, kind_of

_WHOLE: Final = re.compile(r"[-+]?\d{1,18}")
_WHOLE_FRACTION: Final = re.compile(r"([-+]?\d{1,18})\.0*")
_LARGEST_EXACT: Final = 2**53
"""Above it not every whole number has a float of its own."""
_SHOWN: Final = 20  # names in a message
_GROUPS: Final = 5  # of similar names in a message
IGNORED: Final = "-100"
"""The mark for what has no label: PyTorch's losses ignore it by default, and so it is written by
most programs that prepare tokens."""
UNLABELLED: Final = ("-1", IGNORED)
"""Marks for rows without a label: SNLI and the test sets of GLUE have -1."""


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

    def require(self, names: Iterable[str | None]) -> None:
        """Raises RowError for a label that no training row has. None: not labelled."""
        for name in names:
            if name is not None and name not in self.ids:
                known = f"does not occur in the training rows, which have {_listed(self.names)}"
                raise mismatch(f"the label {name!r:.80} {known}", "unknown_label")


class ModelLabels(list[str]):
    """The labels of a finished model in the order of its outputs, if the job gives none.

    Whole numbers in rows are indices into the list, unless all labels are whole numbers.
    """


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
    found = list(counts(examples, column))
    if len(found) < 2:
        raise StageError(
            FailureCode.LABEL_MISMATCH,
            f"All training rows have the same label, {found[0]!r:.80}"
            if found
            else "The training rows have no labels",
            labels=found,
        )
    return Classes(tuple(sorted(found, key=int if all(map(is_whole, found)) else str)))


def counts(examples: Any, column: str) -> Counter[str]:
    """How often each label occurs in the lists of `column`."""
    import pyarrow.compute as pc

    table = examples.with_format("arrow").select_columns([column])[:]
    found = pc.value_counts(pc.list_flatten(table[column]).combine_chunks()).to_pylist()
    return Counter({each["values"]: each["counts"] for each in found if each["values"]})


def infer_names(
    given: Sequence[str] | None, classes: Classes, examples: Any, column: str, found: Inferences
) -> None:
    """Add where the names come from, unless the spec gives them."""
    if isinstance(given, ModelLabels):
        found.add("task.label_names", list(given), "the labels of the model, in its order")
    elif given is None:
        what = "rows" if column == "labels" else "words"
        listed = label_rows.listed(classes.names, counts(examples, column))
        reason = f"the labels of the training rows, sorted; {what} of each: {listed}"
        found.add("task.label_names", list(classes.names), reason)


def doubtful(names: Sequence[str], examples: Any, column: str) -> Iterator[Notice]:
    """What is hardly meant to be a class: marks for what has no label, and labels that differ in
    case or blanks only."""
    counted = counts(examples, column)
    for mark in UNLABELLED:
        if mark in names:
            yield _of_mark(mark, counted[mark], column)
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault("".join(name.split()).casefold(), []).append(name)
    groups = [several[:_SHOWN] for several in alike.values() if len(several) > 1]
    if groups:
        listed = (" and ".join(f"{name!r:.80} ({counted[name]:,})" for name in g) for g in groups)
        more = f"; and {len(groups) - _GROUPS:,} more" if len(groups) > _GROUPS else ""
        yield Notice(
            message="Labels differ in case or blanks only, and each is a class of its own: "
            f"{'; '.join(islice(listed, _GROUPS))}{more}. If they mean the same, write them alike.",
            data={"labels": groups[:_GROUPS]},
        )


def _of_mark(mark: str, count: int, column: str) -> Notice:
    what, remedy = (
        "rows",
        "To leave these rows out, list the labels in `task.label_names` and set "
        "`dataset.on_bad_row: skip`",
    )
    if column == "tags":
        what, remedy = "words", f"To ignore these words, give them the tag {IGNORED}"
    return Notice(
        message=f"The label {mark} is trained as a class; {count:,} {what} of the train split have "
        f"it. Many data sets mark {what} without a label by it. {remedy}.",
        data={"label": mark, what: count},
    )


def class_name(
    value: Any,
    column: str,
    names: Sequence[str] | None,
    label_format: LabelFormat | None = None,
) -> str:
    """The class that a value of a row names; with `label_names`, a number is an index into them.

    `label_format` may say that whole numbers are names, or that all labels are indices. Raises
    RowError if it is neither text nor a whole number nor a Boolean, or not among `names`.
    """
    if isinstance(value, bool):
        value = _of_boolean(value, names)
    value = whole_if_equal(value, names)
    if not isinstance(value, str | int):
        problem = f"`{column}` must be text or a whole number, not {kind_of(value)}"
        raise RowError(problem, reason="invalid_label")
    name = any_text(str(value), column).strip()
    if not name:
        raise RowError(f"`{column}` is empty", reason="empty_label")
    if label_format == "indices" and not is_whole(name):
        problem = f"`{column}` {name!r:.80} is not an index, as `task.label_format` says"
        raise RowError(problem, reason="invalid_label")
    by_name = label_format == "names" or (label_format is None and isinstance(value, str))
    if names is None or (by_name and name in names):
        return name
    if label_format == "names" or not is_whole(name):
        problem = f"`{column}` {name!r:.80} is not among {_given(names)}: {_listed(names)}"
        raise mismatch(problem, "unknown_label")
    are_numbers = isinstance(names, ModelLabels) and all(map(is_whole, names))
    if label_format is None and are_numbers and name in names:
        return name
    number = int(name)
    if not 0 <= number < len(names):
        problem = f"`{column}` {number} is not an index into {_given(names)}: {_listed(names)}"
        raise mismatch(problem, "unknown_label")
    return names[number]


def _of_boolean(value: bool, names: Sequence[str] | None) -> str | int:  # noqa: FBT001
    """Its name in JSON, or in Python where `names` has that; a place in two other `names`."""
    name = str(value)
    if names is None:
        return name.lower()
    found = next((known for known in (name.lower(), name) if known in names), None)
    return found if found is not None else int(value) if len(names) == 2 else name.lower()


def whole_if_equal(value: Any, names: Sequence[str] | None = None) -> Any:
    """1 for 1.0 and "1" for "1.0", which is what pandas writes of a column of whole numbers with an
    empty cell; anything else, and a text among `names`, as it is."""
    if isinstance(value, float) and value.is_integer() and abs(value) < _LARGEST_EXACT:
        return int(value)
    if isinstance(value, str) and "." in value and value.strip() not in (names or ()):
        found = _WHOLE_FRACTION.fullmatch(value.strip())
        return value if found is None else found[1]
    return value


def _given(names: Sequence[str]) -> str:
    return "the model's labels" if isinstance(names, ModelLabels) else "`task.label_names`"


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


def looks_like_list(value: Any) -> bool:
    return isinstance(value, list) or (isinstance(value, str) and value.lstrip().startswith("["))


def is_whole(name: str) -> bool:
    return _WHOLE.fullmatch(name) is not None


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(repr(name) for name in names[:_SHOWN]) + more
