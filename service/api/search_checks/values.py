"""Puts single values of the space into the template and asks whether the job spec takes them."""

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

from service.api.faults.collect import Findings, collect
from service.api.redaction import shown
from service.api.schemas.problems import Fault
from service.api.search_checks import fields, trials
from service.contract.search.space import Dimension, in_order, wanted, with_values
from service.contract.search.spec import SearchSpec

Examine = Callable[[Any], Findings]
"""Every fault of a job's spec."""
_OF_SERVER: Final = ("model", "dataset", "hub", "secrets", "webhooks", "timeout_seconds")
"""Sections of which only this server knows whether files, jobs, folders and tokens exist."""
_MOST_ASKED: Final = 200
"""Values that the database is asked about: each takes some milliseconds."""
_MOST_READ: Final = 20_000_000
"""Characters of specs that are checked with values in them: a second or two."""
_MOST_OF_FIELD: Final = 20
"""Faulty values of one field that are listed."""
_NAMES: Final = frozenset({"unknown_field", "moved_option", "unsupported_option"})
"""Codes of faults that all values of a field have."""
_CONFLICT: Final = {"code": "conflict", "allowed": None, "suggestion": None}
_NO_VALUE: Final = "…"
_SAME_ROWS: Final = "trials are compared by their evaluations, which need the same rows"
_FIXED: Final = {
    "name": "the name of a trial is its search's, with its number",
    "mode": "every trial trains a model",
    "hub": "only the best trial is pushed: see `best`",
    "webhooks": "receivers are the same for all trials",
    "secrets": "secrets are the same for all trials",
    "metadata": "labels are the same for all trials",
    "tracking": "the runs of all trials belong to the search's run in MLflow",
    "priority": "it decides when a trial runs, not how it trains",
    "timeout_seconds": "it decides how long a trial may run, not how it trains",
    "stage_timeout_seconds": "it decides how long a trial may run, not how it trains",
    "max_retries": "it decides what follows a failure, not how a trial trains",
    "dataset.validation": _SAME_ROWS,
    "dataset.validation_split_percentage": _SAME_ROWS,
    "dataset.max_eval_samples": _SAME_ROWS,
    "dataset.test": "no trial is chosen by its test rows",
    "dataset.max_predict_samples": "no trial is chosen by its test rows",
}
"""Sections and fields that do not vary, and why."""


class Values:
    """The template, and what the job spec says about single values of the space in it."""

    def __init__(
        self,
        template: dict[str, Any],
        space: Mapping[str, Dimension],
        examine: Examine,
        search: SearchSpec | None = None,
    ) -> None:
        """`search`: what its trials need; None where the template is faulty."""
        self._template = template
        self._space = space
        self._examine = examine
        self._search = search
        self._asked = 0
        # A template may have a megabyte.
        self._most = max(1, _MOST_READ // len(json.dumps(template, default=str)))
        """Values to try: those of a huge template show what is wrong in their trials."""
        # A training that is resumed must have its source's options: the server compares them.
        training = template.get("training")
        self._resumes = isinstance(training, dict) and bool(training.get("resume_from"))
        own = examine(template).faults
        if search is not None:
            own = [*own, *trials.faults(template, search)]
        self._own = {(fault.path, fault.message) for fault in own}
        self._parents_of: dict[str, dict[str, Any]] = {}

    def faults(self) -> Iterator[Fault]:
        """Of each field; contradictions between fields of the space show in their trials."""
        for path in in_order(self._space):
            refused = _refused(path)
            if refused is not None:
                yield refused
            elif not _takes_no_range(path, self._space[path]):
                yield from self._of_field(path, self._space[path])

    def _of_field(self, path: str, dimension: Dimension) -> Iterator[Fault]:
        count = 0
        for name, value in islice(_tried(dimension), self._most):
            self._most -= 1
            own = self._own_faults(path, value)
            wrong_name = next((fault for fault in own if _is_name(path, fault)), None)
            if wrong_name is not None:
                yield _unknown(path, wrong_name)
                return
            where = f"space.{path}.{name}"
            for fault in own:
                # A rule's sentence names its fields.
                is_named = fault.code == "conflict" or _is_of(path, fault)
                message = fault.message if is_named else f"`job.{fault.path}`: {fault.message}"
                update = {"path": where, "message": message, "given": shown(where, value)}
                yield fault.model_copy(update=update if is_named else {**update, **_CONFLICT})
            count += len(own)
            if count >= _MOST_OF_FIELD:
                return

    def _own_faults(self, path: str, value: Any) -> list[Fault]:
        values = self._parents(path) | {path: value}
        found = self.of_values(values)
        if not found and self._search is not None:
            found = [
                fault.model_copy(update=_CONFLICT)
                for fault in trials.faults(with_values(self._template, values), self._search)
                if (fault.path, fault.message) not in self._own
            ]
        return [fault for fault in found if self._is_own(path, fault)]

    def _is_own(self, path: str, fault: Fault) -> bool:
        """Not where other fields of the space may be part of the cause: a rule names its fields."""
        if fault.code != "conflict" and _is_of(path, fault):
            return True
        named = {part.partition(":")[0] for part in fault.message.split("`")[1::2]}
        names = named | {part.removeprefix("job.") for part in (fault.path, *named)}
        return not any(
            other in names or other.rpartition(".")[2] in names
            for other in self._space
            if other != path
        )

    def of_values(self, values: Mapping[str, Any]) -> list[Fault]:
        """What the job spec says about these values, and not about the template itself."""
        given = with_values(self._template, values)
        is_asked = self._resumes or any(path.split(".")[0] in _OF_SERVER for path in values)
        if is_asked and self._asked < _MOST_ASKED:
            self._asked += 1
            found = self._examine(given).faults
        else:
            found = collect(given).faults
        return [fault for fault in found if (fault.path, fault.message) not in self._own]

    def _parents(self, path: str) -> dict[str, Any]:
        """Values of other fields with which this one varies."""
        if path not in self._parents_of:
            values: dict[str, Any] = {}
            for other, condition in (self._space[path].when or {}).items():
                values |= self._parents(other)
                values[other] = next(iter(wanted(condition)), None)
            self._parents_of[path] = values
        return self._parents_of[path]


def _tried(dimension: Dimension) -> Iterator[tuple[str, Any]]:
    """Each of the choices; of a range its ends, and the value after the first: by their places in
    the dimension."""
    if dimension.choices is not None:
        for index, value in enumerate(dimension.choices):
            yield f"choices.{index}", value
        return
    yield "low", dimension.low
    if dimension.high != dimension.low:
        yield "high", dimension.high
    if dimension.step is not None and dimension.low is not None:
        yield "step", dimension.low + dimension.step


def typed(path: str, dimension: Dimension) -> Dimension:
    """With the type of the field's numbers, where it says which they are."""
    kinds = fields.numbers(path)
    if dimension.choices is not None or not kinds or dimension.type == "int":
        return dimension
    is_integer = kinds == {int} or (int in kinds and dimension.is_integer)
    return dimension.model_copy(update={"type": "int" if is_integer else "float"})


def range_faults(space: Mapping[str, Dimension]) -> Iterator[Fault]:
    """Ranges of fields that take no numbers, or no fractions. `space`: as given."""
    for path, dimension in space.items():
        if dimension.choices is not None or not fields.exists(path):
            continue
        kinds = fields.numbers(path)
        if _takes_no_range(path, dimension):
            yield Fault(
                path=f"space.{path}",
                code="invalid_type",
                message="the field takes no number, so it has no range: list `choices`",
            )
        elif kinds == {int} and dimension.type == "float":
            yield Fault(
                path=f"space.{path}.type",
                code="invalid_value",
                message="the field takes whole numbers only: leave `type` out, or set it to `int`",
                given="float",
                suggestion="int",
            )


def _takes_no_range(path: str, dimension: Dimension) -> bool:
    is_range = dimension.choices is None
    return is_range and fields.exists(path) and not fields.numbers(path)


def fixed(path: str) -> str | None:
    """Why the field does not vary; None if it may."""
    return next(
        (reason for name, reason in _FIXED.items() if f"{path}.".startswith(f"{name}.")), None
    )


def _refused(path: str) -> Fault | None:
    reason, current = fixed(path), fields.current_name(path)
    if reason is not None:
        message = f"does not vary in a search: {reason}"
        return Fault(path=f"space.{path}", code="invalid_value", message=message)
    if current is not None:
        message = f"an older name of the field: use `{current}`"
        return Fault(
            path=f"space.{path}", code="unknown_field", message=message, suggestion=current
        )
    if path.startswith("training.") and not fields.exists(path):
        # With no value of its own: the spec drops TrainingArguments' defaults of other options.
        found = collect(with_values({}, {path: [_NO_VALUE]})).faults
        own = (fault for fault in found if fault.path and path.startswith(fault.path))
        return next((_unknown(path, fault) for fault in own), None)
    return None


def _is_of(path: str, fault: Fault) -> bool:
    """Whether the fault is of the field, or of a part of it, or says that it does not exist."""
    is_above = path.startswith(f"{fault.path}.") and fault.code != "missing_field"
    return is_above or f"{fault.path}.".startswith(f"{path}.")


def _is_name(path: str, fault: Fault) -> bool:
    """Whether all values of the field have the fault: it, or a section on the way, does not
    exist."""
    is_above = path.startswith(f"{fault.path}.")
    return is_above or (fault.code in _NAMES and fault.path == path)


def _unknown(path: str, fault: Fault) -> Fault:
    if fault.code not in _NAMES:
        message = f"`{fault.path}` has no fields of its own"
        where = f"space.{path}"
        return Fault(path=where, code="unknown_field", message=message, suggestion=fault.path)
    near = whole_name(fault)
    hint = f"; did you mean `{near}`?" if near and "did you mean" in fault.message else ""
    message = fault.message
    if fault.code == "unknown_field":
        message = f"the job spec has no such field{hint}"
    return Fault(path=f"space.{path}", code=fault.code, message=message, suggestion=near)


def whole_name(fault: Fault) -> str | None:
    """The path that a fault suggests, from the beginning."""
    section, near = fault.path.rpartition(".")[0], fault.suggestion
    is_short = near is not None and "." not in near and section
    return f"{section}.{near}" if is_short else near
