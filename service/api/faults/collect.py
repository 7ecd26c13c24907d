"""Validate a spec once, and check every rule that its valid fields decide."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from service.api.faults.describe import conflict, describe
from service.api.faults.shorten import MOST_FAULTS, shortened
from service.api.faults.walk import FieldPath, Place, kind_of, kinds, locate
from service.api.schemas.problems import Fault
from service.contract.fields.section import BrokenRulesError, Examination, SpecModel
from service.contract.spec.spec import JobSpec

_MISNAMED: Final = ("unknown_field", "moved_option")
SectionT = TypeVar("SectionT", bound=SpecModel)


@dataclass(frozen=True)
class Findings:
    spec: JobSpec | None = None
    """The spec, unless it is faulty."""
    faults: list[Fault] = field(default_factory=list)
    valid_part: JobSpec | None = None
    """The spec without its faulty fields, which raise UnknownValueError; None if there were too
    many faults to list."""


def collect(given: Any) -> Findings:
    """Every fault in types, bounds and names, and of the rules between fields."""
    examination = Examination()
    errors: list[ErrorDetails] = []
    try:
        spec = JobSpec.model_validate(shortened(given), context=examination)
    except ValidationError as error:
        errors = error.errors(include_url=False)
    else:
        if not examination.has_refused:
            return Findings(spec=spec, valid_part=spec)
    if not isinstance(given, dict):
        return Findings(faults=[describe(errors[0], locate((), given))])
    collector = _Collector(given, examination)
    return collector.findings([error for error in errors if not _is_rule(error)])


def _is_rule(error: ErrorDetails) -> bool:
    """Check the rules again, on the valid fields of every section."""
    return isinstance(error.get("ctx", {}).get("error"), BrokenRulesError)


class _Collector:
    def __init__(self, given: dict[str, Any], examination: Examination) -> None:
        self._given = given
        self._examination = examination
        self._faults: dict[tuple[str, str, str], Fault] = {}
        self._faulty: dict[FieldPath, set[str]] = defaultdict(set)
        """Section → its fields whose values are not known."""

    def findings(self, errors: list[ErrorDetails]) -> Findings:
        errors += [inner for error in errors for inner in self._of_nearest_kind(error)]
        listed = _fair_share(errors)
        for error in listed:
            self._add(error)
        is_complete = len(listed) == len(errors)
        valid_part = self._section(JobSpec, self._given, ()) if is_complete else None
        faults = [fault for fault in self._faults.values() if not self._is_guessed(fault)]
        faults = faults[:MOST_FAULTS]
        faults.sort(key=lambda fault: fault.path)
        return Findings(faults=faults, valid_part=valid_part)

    def _is_guessed(self, fault: Fault) -> bool:
        """Whether the missing field was probably given by a wrong name, which is a fault
        already."""
        if fault.code != "missing_field":
            return False
        suggested = [
            _place(other.suggestion, other.path)
            for other in self._faults.values()
            if other.code in _MISNAMED and other.suggestion
        ]
        return any(f"{name}.".startswith(f"{fault.path}.") for name in suggested)

    def _of_nearest_kind(self, error: ErrorDetails) -> list[ErrorDetails]:
        """What is wrong with a section of unknown kind if its nearest kind is meant."""
        if not error["type"].startswith("union_tag"):
            return []
        place = locate(error["loc"], self._given)
        meant = _nearest_kind(describe(error, place), place)
        if meant is None:
            return []
        tag, kind, model = meant
        try:
            model.model_validate({**shortened(place.value, (model,)), tag: kind})
        except ValidationError as wrong:
            return [
                {**inner, "loc": (*error["loc"], kind, *inner["loc"])}
                for inner in wrong.errors(include_url=False)
                if inner["type"] != "missing" and not _is_rule(inner)
            ]
        return []

    def _add(self, error: ErrorDetails) -> None:
        place = locate(error["loc"], self._given)
        fault = describe(error, place)
        self._note(fault)
        *section, name = place.field_path
        self._faulty[tuple(section)].add(name)
        if fault.code in _MISNAMED and fault.suggestion:
            *parents, name = fault.suggestion.split(".")
            self._faulty[tuple(parents or section)].add(name)

    def _note(self, fault: Fault) -> None:
        self._faults.setdefault((fault.path, fault.code, fault.message), fault)

    def _section(self, kind: type[SectionT], given: dict[str, Any], path: FieldPath) -> SectionT:
        """The valid part of a section, whose rules are checked on the way."""
        faulty = self._faulty[path]
        inner = {
            name: self._section(chosen, given[name], (*path, name))
            for name, definition in kind.model_fields.items()
            if name not in faulty and (chosen := kind_of(definition, given.get(name)))
        }
        section = self._examination.section(kind, inner, faulty)
        place = Place(path, path, None, None, (kind,), given)
        refused = (sentence for _, sentence in self._examination.refused(kind))
        for sentence in (*refused, *section.contradictions()):
            self._note(conflict(sentence, place))
        return section


def _place(suggestion: str, path: str) -> str:
    """The whole path of a name that was suggested for the field at `path`."""
    section = path.rpartition(".")[0]
    return suggestion if "." in suggestion or not section else f"{section}.{suggestion}"


def _nearest_kind(fault: Fault, place: Place) -> tuple[str, str, type[SpecModel]] | None:
    """Discriminator, kind and model: the kind that was suggested, else the only one that has every
    field that was given."""
    if not isinstance(place.value, dict) or place.field is None:
        return None
    tag = str(place.field.discriminator)
    names = place.value.keys() - {tag}
    fitting = [
        (tag, kind, model)
        for model in place.models
        for kind in kinds(model, tag)
        if (kind == fault.suggestion if fault.suggestion else names <= model.model_fields.keys())
    ]
    return fitting[0] if len(fitting) == 1 else None


def _fair_share(errors: list[ErrorDetails]) -> list[ErrorDetails]:
    """At most MOST_FAULTS of them, from every section."""
    if len(errors) <= MOST_FAULTS:
        return errors
    sections: dict[Any, list[ErrorDetails]] = defaultdict(list)
    for error in errors:
        sections[error["loc"][0] if len(error["loc"]) > 1 else None].append(error)
    share = max(1, MOST_FAULTS // len(sections))
    return [error for group in sections.values() for error in group[:share]]
