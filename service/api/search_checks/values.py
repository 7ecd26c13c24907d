"""Puts single values of the space into the template and asks whether the job spec takes them."""

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

from service.api.faults.collect import Findings
from service.api.faults.redaction import shown
from service.api.schemas.problems import Fault
from service.api.search_checks import fields, trials
from service.contract.search.space import Dimension, in_order, wanted, with_values
from service.contract.search.spec import SearchSpec

Examine = Callable[[Any], Findings]
"""Every fault of a job's spec."""
_OF_SERVER: Final = ("model", "dataset", "hub", "secrets", "webhooks", "timeout_seconds")
"""Sections that name files, jobs, folders and tokens: only this server knows if they exist."""
_MOST_ASKED: Final = 200
"""Values that are looked up in the database: each takes some milliseconds."""
_MOST_READ: Final = 20_000_000
"""Characters of specs that are checked with values in them: a second or two."""
_MOST_OF_FIELD: Final = 20
"""Faulty values of one field that are listed."""
_NO_VALUE: Final = ["…"]
"""For a field that does not exist: some of TrainingArguments, at their defaults, are ignored."""
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
        own = trials.faults(template, search, examine)
        self._own = {(fault.path, fault.message) for fault in own}

    def faults(self) -> Iterator[Fault]:
        """Of each field; contradictions between fields of the space show in their trials."""
        parents: dict[str, dict[str, Any]] = {}
        """Of each field, values of the others with which it varies."""
        for path in in_order(self._space):
            values = parents[path] = {}
            for other, condition in (self._space[path].when or {}).items():
                values |= parents[other] | {other: next(iter(wanted(condition)), None)}
            refused = _refused(path, self._space[path])
            if refused is not None:
                yield refused
                continue
            yield from _fractions(path, self._space[path])
            yield from self._of_field(path, values)

    def _of_field(self, path: str, parents: dict[str, Any]) -> Iterator[Fault]:
        count = 0
        for where, value in islice(_tried(path, self._space[path]), self._most):
            self._most -= 1
            found = self.of_values({**parents, path: value}, self._search)
            own = [fault for fault in found if self._is_own(path, fault)]
            unknown = next((each for fault in own if (each := fields.unknown(path, fault))), None)
            if unknown is not None:  # for every value
                update = {"path": f"space.{path}", "given": None, "allowed": None}
                yield unknown.model_copy(update=update)
                return
            yield from (_at_value(fault, path, where, value) for fault in own)
            count += len(own)
            if count >= _MOST_OF_FIELD:
                return

    def _is_own(self, path: str, fault: Fault) -> bool:
        """Not where other fields of the space may be part of the cause: a rule names its fields."""
        if fault.code != "conflict" and fields.is_of(path, fault):
            return True
        quoted = fault.message.split("`")[1::2]
        names = {part.partition(":")[0].removeprefix("job.") for part in (fault.path, *quoted)}
        return not any(
            other in names or other.rpartition(".")[2] in names
            for other in self._space
            if other != path
        )

    def of_values(self, values: Mapping[str, Any], search: SearchSpec | None = None) -> list[Fault]:
        """What the job spec, and `search`, say about these values, and not about the template."""
        given = with_values(self._template, values)
        is_asked = self._resumes or any(path.split(".")[0] in _OF_SERVER for path in values)
        if is_asked and self._asked < _MOST_ASKED:
            self._asked += 1
            found = trials.faults(given, search, self._examine)
        else:
            found = trials.faults(given, search)
        return [fault for fault in found if (fault.path, fault.message) not in self._own]


def _tried(path: str, dimension: Dimension) -> Iterator[tuple[str, Any]]:
    """Places in the space and their values: each of the choices; of a range its ends, and the value
    after the first."""
    where = f"space.{path}"
    if not fields.exists(path):
        yield where, _NO_VALUE
    elif dimension.choices is not None:
        for index, value in enumerate(dimension.choices):
            yield f"{where}.choices.{index}", value
    else:
        yield f"{where}.low", dimension.low
        if dimension.high != dimension.low:
            yield f"{where}.high", dimension.high
        if dimension.step is not None and dimension.low is not None:
            yield f"{where}.step", dimension.low + dimension.step


def _at_value(fault: Fault, path: str, where: str, value: Any) -> Fault:
    """The fault that the job spec has with this value of the field at `path`."""
    given = None if value is _NO_VALUE else shown(where, value)
    update = {"path": where, "given": given}
    # A rule's sentence names its fields.
    if fault.code != "conflict" and not fields.is_of(path, fault):
        message = f"`job.{fault.path}`: {fault.message}"
        update |= {"message": message, "code": "conflict", "allowed": None, "suggestion": None}
    return fault.model_copy(update=update)


def _refused(path: str, dimension: Dimension) -> Fault | None:
    """Why the field does not vary at all, or not in a range."""
    where = f"space.{path}"
    for name, reason in _FIXED.items():
        if f"{path}.".startswith(f"{name}."):
            message = f"does not vary in a search: {reason}"
            return Fault(path=where, code="invalid_value", message=message)
    if dimension.choices is None and fields.exists(path) and not fields.numbers(path):
        message = "the field takes no number, so it has no range: list `choices`"
        return Fault(path=where, code="invalid_type", message=message)
    return fields.older_name(path, where)


def _fractions(path: str, dimension: Dimension) -> Iterator[Fault]:
    if dimension.type == "float" and fields.numbers(path) == {int}:
        yield Fault(
            path=f"space.{path}.type",
            code="invalid_value",
            message="the field takes whole numbers only: leave `type` out, or set it to `int`",
            given="float",
            suggestion="int",
        )
