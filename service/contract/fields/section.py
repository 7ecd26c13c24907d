"""What the sections of a spec have in common: unknown fields are refused, and rules between
fields are checked even where other fields are faulty.

A validation whose context is `Examination` keeps the valid fields of a faulty section. A section
built from them (`Examination.section`) raises UnknownValueError where a rule reads a faulty field:
such a rule is undecided and skipped.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

Rule = Callable[[Any], Iterator[str]]
"""Yields one sentence for each contradiction, with the fields it names in backticks."""
RuleT = TypeVar("RuleT", bound=Rule)
SectionT = TypeVar("SectionT", bound="SpecModel")
Refused = list[tuple[str, str]]
"""Options, and the sentence that says why each is refused."""
_BOUNDS: Final = frozenset(
    {
        "finite_number",
        "greater_than",
        "greater_than_equal",
        "less_than",
        "less_than_equal",
        "multiple_of",
        "string_pattern_mismatch",
        "string_too_long",
        "string_too_short",
        "too_long",
        "too_short",
        "value_error",
    }
)
"""Types of pydantic's errors for a value of the right kind."""
_FORM: Final = frozenset({"extra_forbidden", "missing", "union_tag_invalid", "union_tag_not_found"})
"""For a section that does not have the form of this release at all."""


class BrokenRulesError(ValueError):
    """Fields are valid one by one but contradict each other."""

    def __init__(self, sentences: Iterable[str]) -> None:
        self.sentences = tuple(sentences)
        super().__init__("; ".join(self.sentences))


class UnknownValueError(Exception):
    """The field's value is unknown, because the given one is faulty."""


def rule(method: RuleT) -> RuleT:
    """Marks a method of a section as a rule between its fields."""
    method.is_rule = True  # type: ignore[attr-defined]
    return method


@cache
def _marked(section: type["SpecModel"]) -> tuple[Rule, ...]:
    members = [member for base in reversed(section.__mro__) for member in vars(base).values()]
    methods = (member for member in members if isinstance(member, FunctionType))
    return tuple(method for method in methods if getattr(method, "is_rule", False))


class SpecModel(BaseModel):
    # Built on first use: the whole spec includes all others, and few are used on their own.
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        defer_build=True,
        # Pydantic takes "inf" and "nan" for numbers, and NaN is within every bound.
        allow_inf_nan=False,
    )

    @classmethod
    def rules(cls) -> tuple[Rule, ...]:
        """The rules between the fields, in the order in which they are reported."""
        return _marked(cls)

    @classmethod
    def without_refused(
        cls, given: dict[str, Any], info: ValidationInfo, refused: Refused
    ) -> dict[str, Any]:
        """`given` without the options in `refused`, which an examination notes; any other
        validation ends here with BrokenRulesError."""
        if refused and isinstance(info.context, Examination):
            info.context.note(cls, refused)
        else:
            refuse(sentence for _, sentence in refused)
        names = {name for name, _ in refused}
        return {name: value for name, value in given.items() if name not in names}

    def contradictions(self) -> Iterator[str]:
        """The sentences of the broken rules; rules that are undecided are skipped."""
        for check in self.rules():
            try:
                yield from list(check(self))
            except UnknownValueError:
                continue

    @field_validator("*", mode="after")
    @classmethod
    def _keep_valid(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(info.context, _Memory) and info.field_name is not None:
            info.context.keep(cls, info.field_name, value)
        return value

    @model_validator(mode="wrap")
    @classmethod
    def _take_what_was_accepted(
        cls, given: Any, validate: ModelWrapValidatorHandler[Self], info: ValidationInfo
    ) -> Self:
        if not isinstance(info.context, Acceptance):
            return validate(given)
        return info.context.section(cls, given, validate)

    @model_validator(mode="after")
    def _follow_rules(self, info: ValidationInfo) -> Self:
        if not isinstance(info.context, Acceptance):
            refuse(self.contradictions())
        return self

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in type(self).model_fields:
                raise UnknownValueError(name)
            return super().__getattr__(name)


def refuse(sentences: Iterable[str]) -> None:
    """Raise BrokenRulesError if there are any."""
    found = list(sentences)
    if found:
        raise BrokenRulesError(found)


def refused_names(given: dict[str, Any], sentences: dict[str, str]) -> Refused:
    """The names in `given` that `sentences` has reasons for."""
    names = sorted(sentences.keys() & given.keys())
    return [(name, f"`{name}` is refused: {sentences[name]}") for name in names]


class _Memory:
    """The valid fields of each section. No section contains another one of its class."""

    def __init__(self) -> None:
        self._valid: dict[type[SpecModel], dict[str, Any]] = defaultdict(dict)

    def keep(self, section: type[SpecModel], name: str, value: Any) -> None:
        self._valid[section][name] = value


class Acceptance(_Memory):
    """The context of a validation whose spec was accepted before, perhaps by an older release.

    Neither the rules between fields nor the bounds of fields, which may be newer than the spec, are
    checked again: a release with a new one could neither start nor end the jobs that it finds.
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_unreadable = False

    def section(
        self, kind: type[SectionT], given: Any, validate: ModelWrapValidatorHandler[SectionT]
    ) -> SectionT:
        """The section of class `kind`; values that are out of its bounds are as they were given.
        What was stored is in the types of the spec: text, numbers, lists and objects."""
        self._valid[kind] = {}
        try:
            return validate(given)
        except ValidationError as error:
            outside = _out_of_bounds(error)
            if outside is None or self._is_unreadable:
                self._is_unreadable = True  # nor is the section readable that contains this one
                raise
            raw = {name: given[name] for name in outside}
            return cast("SectionT", kind.model_construct(**(self._valid[kind] | raw)))


def _out_of_bounds(error: ValidationError) -> set[str] | None:
    """The fields whose values have the right type but are out of bounds; None if there are other
    faults."""
    wrong: dict[str, set[str]] = defaultdict(set)
    for part in error.errors(include_url=False, include_input=False):
        wrong[str(part["loc"][0]) if part["loc"] else ""].add(part["type"])
    # A value of several kinds has an error for each of them.
    is_bound = all(name and types & _BOUNDS and not types & _FORM for name, types in wrong.items())
    return set(wrong) if is_bound else None


class Examination(_Memory):
    """The context of a validation that finds every fault of a spec in one pass.

    A spec has at most one section of each class, so that the class identifies it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._refused: dict[type[SpecModel], Refused] = defaultdict(list)

    def note(self, section: type[SpecModel], refused: Refused) -> None:
        self._refused[section] += refused

    @property
    def has_refused(self) -> bool:
        return bool(self._refused)

    def refused(self, section: type[SpecModel]) -> Refused:
        return self._refused.get(section, [])

    def section(
        self, kind: type[SectionT], inner: dict[str, SpecModel], faulty: Iterable[str]
    ) -> SectionT:
        """The section of class `kind` from its valid fields, its sections `inner` and defaults;
        its fields `faulty` have no value."""
        built = cast("SectionT", kind.model_construct(**(self._valid[kind] | inner)))
        for name in (*faulty, *(name for name, _ in self.refused(kind))):
            built.__dict__.pop(name, None)
        return built
