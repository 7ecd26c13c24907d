"""Finds values of the space that the job spec takes one by one, but not together."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from math import prod
from random import Random
from typing import Any, Final

from service.api.redaction import shown
from service.api.schemas.problems import Fault
from service.api.search_checks.values import Tried
from service.contract.search.space import Dimension, in_order, with_values

Assignment = Mapping[str, Tried]
"""By path, of the fields that vary in one trial."""
Refusals = Callable[[Any], list[Fault]]
"""Every fault of a trial's spec."""
MOST_TRIED: Final = 1000
"""Trials whose specs are checked: a valid one takes 0.2 ms, a faulty one 1 ms."""
_MOST_CAUSES: Final = 20


@dataclass(frozen=True)
class Refused:
    fault: Fault
    is_certain: bool
    """False where the ends of a range are part of the cause: most trials are valid then."""


def refused(
    template: dict[str, Any],
    space: Mapping[str, Dimension],
    values: Mapping[str, list[Tried]],
    refusals: Refusals,
    most: int = MOST_TRIED,
) -> Iterator[Refused]:
    """One for each thing that is wrong, with the fewest values that cause it.

    Every combination is tried where there are few, else such as have each value at least once.
    `values`: those to try of each field, which are right on their own; `refusals`: of a spec.
    """
    own = {_key(fault) for fault in refusals(template)}
    for assignment in islice(_with_all(space, values), min(most, MOST_TRIED)):
        for fault in refusals(_spec(template, assignment)):
            if _key(fault) in own:
                continue
            own.add(_key(fault))
            cause = _smallest(template, assignment, fault, refusals)
            if cause:
                yield _of_cause(fault, cause)
            if len(own) >= _MOST_CAUSES:
                return


def _with_all(
    space: Mapping[str, Dimension], values: Mapping[str, list[Tried]]
) -> Iterator[Assignment]:
    paths = [path for path in in_order(space) if path in values]
    if prod(len(values[path]) for path in paths) <= MOST_TRIED:
        yield from _every(space, values, paths, {})
    else:
        yield from _mixed(space, values, paths)


def _every(
    space: Mapping[str, Dimension],
    values: Mapping[str, list[Tried]],
    paths: list[str],
    chosen: Assignment,
) -> Iterator[Assignment]:
    if not paths:
        yield chosen
        return
    path, *others = paths
    if not _varies(space[path], chosen):
        yield from _every(space, values, others, chosen)
        return
    for tried in values[path]:
        yield from _every(space, values, others, {**chosen, path: tried})


def _mixed(
    space: Mapping[str, Dimension], values: Mapping[str, list[Tried]], paths: list[str]
) -> Iterator[Assignment]:
    """The same ones each time."""
    random = Random(0)
    shuffled = {path: random.sample(values[path], len(values[path])) for path in paths}
    for turn in range(MOST_TRIED):
        chosen: dict[str, Tried] = {}
        for path in paths:
            if _varies(space[path], chosen):
                tried = shuffled[path]
                # Each value once, then any of them.
                chosen[path] = tried[turn] if turn < len(tried) else random.choice(tried)
        yield chosen


def _varies(dimension: Dimension, chosen: Assignment) -> bool:
    return dimension.is_met({path: tried.value for path, tried in chosen.items()})


def _spec(template: dict[str, Any], assignment: Assignment) -> dict[str, Any]:
    return with_values(template, {path: tried.value for path, tried in assignment.items()})


def _smallest(
    template: dict[str, Any], assignment: Assignment, fault: Fault, refusals: Refusals
) -> Assignment:
    """The values without which the fault is not the same, with the template's for all others."""
    cause = dict(assignment)
    for path in assignment:
        fewer = {other: tried for other, tried in cause.items() if other != path}
        if _key(fault) in {_key(each) for each in refusals(_spec(template, fewer))}:
            cause = fewer
    return cause


def _of_cause(fault: Fault, cause: Assignment) -> Refused:
    path = fault.path if fault.path in cause else list(cause)[-1]
    tried = cause[path]
    where = f"space.{path}.{tried.name}"
    others = [
        f"`{other}: {_text(other, each.value)}`" for other, each in cause.items() if other != path
    ]
    with_others = f" (with {' and '.join(others)})" if others else ""
    # A rule's sentence names its fields.
    names_fields = fault.code == "conflict" or fault.path == path
    message = fault.message if names_fields else f"`job.{fault.path}`: {fault.message}"
    return Refused(
        Fault(
            path=where,
            code="conflict",
            message=message + with_others,
            given=shown(where, tried.value),
        ),
        is_certain=not others or all(each.is_choice for each in cause.values()),
    )


def _text(path: str, value: Any) -> str:
    given = shown(path, value)
    return str(given).lower() if given is None or isinstance(given, bool) else str(given)


def _key(fault: Fault) -> tuple[str, str]:
    return fault.path, fault.message
