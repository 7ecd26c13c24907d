"""`space` of a search: which fields of the template vary, and between which values.

A field is named by its path in a job spec, such as `training.learning_rate`.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import Field, StringConstraints, model_validator

from service.contract.fields import bounds, patterns
from service.contract.fields.section import SpecModel, rule
from service.contract.fields.types import Moderate

MOST_DIMENSIONS: Final = 64
MOST_CHOICES: Final = 1000
MOST_CHOICES_IN_ALL: Final = 2000
"""Each is checked with the whole spec, which takes a millisecond."""

Path = Annotated[
    str,
    StringConstraints(min_length=1, max_length=200, pattern=patterns.FIELD_PATH),
]
_BOUNDED: Final = Field(ge=-bounds.LARGEST, le=bounds.LARGEST)
_POSITIVE: Final = Field(gt=0, le=bounds.LARGEST)
# Bounds of a union would not be in its JSON schema.
Number = Annotated[int, _BOUNDED] | Annotated[float, _BOUNDED]
Step = Annotated[int, _POSITIVE] | Annotated[float, _POSITIVE]
Value = Annotated[Any, Moderate]
"""What a field of a job spec may be; a search puts it there as it is."""


class Dimension(SpecModel):
    """The values of one field: a range (`low`, `high`) or `choices`."""

    low: Number | None = Field(None, examples=[1e-6], description="The least value; included.")
    high: Number | None = Field(None, examples=[1e-3], description="The largest value; included.")
    log: bool = Field(
        default=False,
        description="Whether as many values are tried between 0.001 and 0.01 as between 0.01 and "
        "0.1, as suits a learning rate.",
    )
    step: Step | None = Field(
        None,
        examples=[8],
        description="Only `low`, `low + step`, and so on; default for integers: 1.",
    )
    type: Literal["int", "float"] | None = Field(
        None, description="Default: that of the field, which is `int` where it takes no fractions."
    )
    choices: list[Value] | None = Field(
        None,
        min_length=1,
        max_length=MOST_CHOICES,
        examples=[["linear", "cosine"]],
        description="The values one by one, each as a job's spec has it: also null, a list, or a "
        "whole section. In place of a dimension that has nothing else, the list alone will do.",
    )
    when: dict[Path, Value] | None = Field(
        None,
        min_length=1,
        max_length=MOST_DIMENSIONS,
        examples=[{"training.optim": ["sgd", "rmsprop"]}],
        description="Vary the field only where each of these other fields of the space, which have "
        "`choices`, has this value (or one of this list of values); elsewhere the template's value "
        "applies.",
    )

    @model_validator(mode="before")
    @classmethod
    def _list_is_choices(cls, given: Any) -> Any:
        return {"choices": given} if isinstance(given, list) else given

    @rule
    def is_a_range_or_choices(self) -> Iterator[str]:
        ranged = {
            name
            for name, value in (("low", self.low), ("high", self.high), ("step", self.step))
            if value is not None
        }
        if self.choices is not None and ranged | ({"log"} if self.log else set()):
            yield "`choices` are values one by one: leave out `low`, `high`, `step` and `log`"
        elif self.choices is None and not {"low", "high"} <= ranged:
            yield "give `low` and `high`, or `choices`"

    @rule
    def range_has_values(self) -> Iterator[str]:
        if self.low is None or self.high is None:
            return
        if self.low > self.high:
            yield f"`low` is {self.low}, more than `high`, {self.high}: the range is empty"
        elif self.log and self.low <= 0:
            yield f"`log` needs a `low` above 0, and `low` is {self.low}: zero has no logarithm"
        if self.log and self.step is not None:
            yield "`log` and `step` cannot be combined: leave one of them out, or list `choices`"

    @rule
    def integers_are_whole(self) -> Iterator[str]:
        if self.type != "int":
            return
        for name in ("low", "high", "step"):
            value = getattr(self, name)
            if value is not None and value != int(value):
                yield f"`{name}` is {value}, but the values are integers"

    @rule
    def choices_differ(self) -> Iterator[str]:
        seen: set[str] = set()
        for choice in self.choices or ():
            text = json.dumps(choice, sort_keys=True, default=str)
            if text in seen:
                yield f"`choices` has {text[:100]} twice"
                return
            seen.add(text)

    @property
    def is_integer(self) -> bool:
        """Whether a range has only integers, where the field's own type is not known."""
        given = (self.low, self.high, self.step)
        return self.type == "int" or (
            self.type is None and all(isinstance(value, int | None) for value in given)
        )

    def size(self) -> float:
        """How many values there are; `inf` for a continuous range."""
        if self.choices is not None:
            return len(self.choices)
        if self.low is None or self.high is None:
            return 0
        if self.step is None and not self.is_integer:
            return 1 if self.low == self.high else math.inf
        step = self.step or 1
        return math.floor((self.high - self.low) / step + 1e-9) + 1

    def holds(self, value: Any) -> bool:
        """Whether the search could suggest this value."""
        if self.choices is not None:
            return among(value, self.choices)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        if self.low is None or self.high is None or not self.low <= value <= self.high:
            return False
        if self.is_integer and value != int(value):
            return False
        steps = 0.0 if self.step is None else (value - self.low) / self.step
        return abs(steps - round(steps)) < 1e-9 * max(1.0, abs(steps))

    def is_met(self, values: Mapping[str, Any]) -> bool:
        """Whether the field varies where the fields before it have these values."""
        return all(
            path in values and any(same(values[path], value) for value in wanted(condition))
            for path, condition in (self.when or {}).items()
        )


def wanted(condition: Any) -> list[Any]:
    """The values that a condition of `when` names."""
    return condition if isinstance(condition, list) else [condition]


def same(one: Any, other: Any) -> bool:
    """Whether two values of a spec are equal; `true` is not 1."""
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def among(value: Any, choices: Sequence[Any]) -> bool:
    """Whether one of the choices is the same, of thousands in microseconds."""
    if value not in choices:
        return False
    # The first equal one may be 1 where the value is `true`.
    return same(value, choices[choices.index(value)]) or any(
        same(value, choice) for choice in choices
    )


def in_order(space: Mapping[str, Dimension]) -> list[str]:
    """The paths, each after those that its `when` names, otherwise as given. Paths in a circle
    of conditions are left out."""
    ordered: dict[str, None] = {}
    waiting = list(space)
    while waiting:
        ready = [
            path for path in waiting if (space[path].when or {}).keys() & space.keys() <= {*ordered}
        ]
        if not ready:
            break
        # The first one only: what comes after it keeps its place before the rest.
        ordered[ready[0]] = None
        waiting.remove(ready[0])
    return list(ordered)


def value_at(spec: Mapping[str, Any], path: str) -> Any:
    """The value at this path of a spec; None where a section on the way is missing."""
    value: Any = spec
    for name in path.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return None
        value = value[name]
    return value


def with_values(template: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The template with these values by path; missing sections are added. What has no value in
    it is the template's own, not a copy."""
    spec = dict(template)
    for path, value in values.items():
        *sections, name = path.split(".")
        place = spec
        for section in sections:
            inner = place.get(section)
            place[section] = dict(inner) if isinstance(inner, Mapping) else {}
            place = place[section]
        place[name] = value
    return spec
