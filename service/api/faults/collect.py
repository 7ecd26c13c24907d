"""Validate, mend what is wrong, validate again: until every rule was reached."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from service.api.faults.describe import describe, named_fields
from service.api.faults.walk import Path as FaultPath
from service.api.faults.walk import Place, at, kinds, locate, replaced, without
from service.api.schemas.problems import Fault
from service.contract.spec import JobSpec

MOST_FAULTS: Final = 100
"""Nobody reads more, and finding near names takes time."""
_ROUNDS: Final = 8


@dataclass
class Findings:
    """What was found; `spec` is the client's, mended where it was faulty."""

    spec: JobSpec | None = None
    faults: list[Fault] = field(default_factory=list)
    mended: set[FaultPath] = field(default_factory=set)
    """Places whose value is not the client's: nothing said about them is news."""

    def is_mended(self, path: FaultPath) -> bool:
        return any(path[: len(place)] == place for place in self.mended)


def collect(given: Any) -> Findings:
    """Every fault of the form: types, bounds, names, and the rules between fields."""
    findings = Findings()
    for _ in range(_ROUNDS):
        try:
            findings.spec = JobSpec.model_validate(given)
        except ValidationError as error:
            found = error.errors(include_url=False)[:MOST_FAULTS]
            if not isinstance(given, dict):
                findings.faults += describe(found[0], locate((), given))
                return findings
            given = _note_and_mend(found, given, findings)
        else:
            break
    findings.faults.sort(key=lambda fault: fault.path)
    return findings


def _note_and_mend(errors: list[ErrorDetails], given: Any, findings: Findings) -> Any:
    """All faults of a round are noted before the first is mended."""
    found = []
    for error in errors:
        place = locate(error["loc"], given)
        faults = [
            fault
            for fault in describe(error, place)
            if not (findings.is_mended(place.path) or _rests_on_mended(fault, place, findings))
        ]
        found.append((error, place, faults or describe(error, place)))
        findings.faults += [fault for fault in faults if fault not in findings.faults]
    for error, place, faults in reversed(found):  # from the back: indexes in lists stay right
        if faults[0].code == "conflict":
            given = _mend_conflict(faults, place, given, findings)
        else:
            given = _mend_field(error, faults[0], place, given, findings)
    return given


def _mend_field(
    error: ErrorDetails, fault: Fault, place: Place, given: Any, findings: Findings
) -> Any:
    """Put the suggestion in place; else leave the field out; else use the spec's own example."""
    if error["type"].startswith("union_tag"):
        return _mend_kind(fault, place, given, findings)
    if fault.code == "unknown_field":
        return _mend_name(fault, place, given, findings)
    if fault.code == "invalid_value" and fault.suggestion is not None:
        return replaced(given, place.path, fault.suggestion)
    findings.mended.add(place.path)
    required = place.field is not None and place.field.is_required()
    whole = place.owner is not None and str(place.path[-1]) in place.owner.model_fields
    if required and whole and place.field is not None and place.field.examples:
        return replaced(given, place.path, place.field.examples[0])
    if required and not whole:  # one item of a required list
        findings.mended.add(place.path[:-1])
        assert place.field is not None
        examples = place.field.examples or [None]
        return replaced(given, place.path[:-1], examples[0])
    return without(given, place.path)


def _mend_kind(fault: Fault, place: Place, given: Any, findings: Findings) -> Any:
    assert place.field is not None
    tag = str(place.field.discriminator)
    kind = fault.suggestion or _kind_that_fits(place, tag)
    if kind is not None and isinstance(place.value, dict):
        return replaced(given, (*place.path, tag), kind)
    if kind is not None and isinstance(place.value, str):
        return replaced(given, place.path, kind)
    findings.mended.add(place.path)
    return replaced(given, place.path, (place.field.examples or [None])[0])


def _kind_that_fits(place: Place, tag: str) -> str | None:
    """The only kind that has every field that was given."""
    names = set(place.value) if isinstance(place.value, dict) else set()
    fitting = [model for model in place.models if names <= set(model.model_fields)]
    return kinds(fitting[0], tag)[0] if len(fitting) == 1 else None


def _mend_name(fault: Fault, place: Place, given: Any, findings: Findings) -> Any:
    """Give the value to the field that was probably meant, for the rules between fields.

    It is a guess: nothing is said of a field that the client did not give.
    """
    value = at(given, place.path)
    given = without(given, place.path)
    if fault.suggestion is None or "." in fault.suggestion:
        return given
    target = (*place.path[:-1], fault.suggestion)
    holder = at(given, place.path[:-1])
    if isinstance(holder, dict) and fault.suggestion in holder:
        return given
    findings.mended.add(target)
    return replaced(given, target, value)


def _mend_conflict(faults: list[Fault], place: Place, given: Any, findings: Findings) -> Any:
    """Leave out the fields that the broken rules name; failing that, the whole section."""
    rules = [path for fault in faults for path in _named_paths(fault, place)]
    named = [path for path in rules if at(given, path) is not None]
    if not named and place.path:
        findings.mended.add(place.path)
        examples = place.field.examples if place.field else None
        return replaced(given, place.path, examples[0]) if examples else without(given, place.path)
    for path in named:
        findings.mended.add(path)
        given = without(given, path)
    return given


def _named_paths(fault: Fault, place: Place) -> Iterator[FaultPath]:
    for path in named_fields(fault.message, place):
        yield (*place.path, *path)


def _rests_on_mended(fault: Fault, place: Place, findings: Findings) -> bool:
    """A rule that names a field whose value is not the client's may only seem to be broken."""
    if fault.code != "conflict":
        return False
    leaves = {path[-1] for path in findings.mended if path}
    return any(
        findings.is_mended(path) or path[-1] in leaves for path in _named_paths(fault, place)
    )
