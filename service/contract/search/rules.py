"""Rules between the sections of a search. Each yields a sentence for each contradiction."""

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice
from math import prod
from typing import Any, Final

from service.contract.search.objectives import Objective
from service.contract.search.pruners import NoPruner, PrunerSpec
from service.contract.search.samplers import GridSampler, SamplerSpec
from service.contract.search.space import (
    MOST_CHOICES_IN_ALL,
    Dimension,
    among,
    in_order,
    wanted,
)

MOST_COMBINATIONS: Final = 100_000
MOST_CONDITIONS: Final = 500
"""Values that the `when` of all fields name."""
_MOST_SENTENCES: Final = 100
"""Of one rule: users do not read more, and finding the nearest names takes time."""

_Space = Mapping[str, Dimension] | None


def grid_is_finite(sampler: SamplerSpec, space: _Space) -> Iterator[str]:
    if not isinstance(sampler, GridSampler) or space is None:
        return
    endless = [path for path, dimension in space.items() if dimension.size() == float("inf")]
    for path in endless:
        yield (
            f"`space.{path}` has no end of values, and `sampler` `grid` tries each one: give it a "
            "`step`, or list `choices`"
        )
    if any(dimension.when for dimension in space.values()):
        yield "`sampler` `grid` tries every combination: it takes no `when` in `space`"
    if not endless:
        count = prod(int(dimension.size()) for dimension in space.values())
        if count > MOST_COMBINATIONS:
            yield (
                f"`space` has {count:,} combinations, and `sampler` `grid` tries at most "
                f"{MOST_COMBINATIONS:,}: use larger steps or fewer choices, or `sampler` `qmc`, "
                "which spreads any number of trials evenly"
            )


def grid_has_whole_trials(
    sampler: SamplerSpec, enqueue: Sequence[Mapping[str, Any]], space: _Space
) -> Iterator[str]:
    if not isinstance(sampler, GridSampler) or space is None:
        return
    for index, values in enumerate(enqueue):
        missing = [path for path in space if path not in values]
        if missing:
            yield (
                f"`enqueue.{index}` leaves out `{missing[0]}`, and `sampler` `grid` cannot choose "
                "it: name all fields of `space`"
            )


def best_is_one(action: str, objectives: Sequence[Objective] | None) -> Iterator[str]:
    if action != "keep" and len(objectives or ()) > 1:
        yield (
            f"`best` is `{action}`, and several in `objective` have no single best trial: use "
            "`keep`, then publish or clone the job that you choose"
        )


def objectives_fit_the_pruner(
    pruner: PrunerSpec, objectives: Sequence[Objective] | None
) -> Iterator[str]:
    if not isinstance(pruner, NoPruner) and len(objectives or ()) > 1:
        yield (
            f"`pruner` `{pruner.name}` compares trials by one metric: use `none` for several in "
            "`objective`"
        )


def objectives_differ(objectives: Sequence[Objective] | None) -> Iterator[str]:
    keys = [objective.key for objective in objectives or ()]
    for key in dict.fromkeys(keys):
        if keys.count(key) > 1:
            yield f"`objective` names `{key}` {keys.count(key)} times"


def conditions_have_their_fields(space: _Space) -> Iterator[str]:
    if space is None or not _conditions_are_few(space):
        return
    yield from islice(
        (
            sentence
            for path, dimension in space.items()
            for other, condition in (dimension.when or {}).items()
            for sentence in _condition(space, path, other, condition)
        ),
        _MOST_SENTENCES,
    )
    for path in sorted(space.keys() - {*in_order(space)}):
        yield f"`space.{path}.when` depends on itself, by way of other conditions"


def conditions_are_few(space: _Space) -> Iterator[str]:
    if space is not None and not _conditions_are_few(space):
        yield f"the `when` of all fields in `space` may name {MOST_CONDITIONS:,} values in all"


def _conditions_are_few(space: Mapping[str, Dimension]) -> bool:
    conditions = (each for field in space.values() for each in (field.when or {}).values())
    return sum(max(1, len(wanted(each))) for each in conditions) <= MOST_CONDITIONS


def conditions_can_be_met(space: _Space) -> Iterator[str]:
    """By values that a field's own conditions and those of the fields that it depends on share."""
    if space is None or not _conditions_are_few(space):
        return
    needs_of: dict[str, dict[str, list[Any]]] = {}
    for path in in_order(space):
        needs: dict[str, list[Any]] = {}
        for other, condition in (space[path].when or {}).items():
            for name, values in ((other, wanted(condition)), *needs_of.get(other, {}).items()):
                before = needs.setdefault(name, values)
                if before is values:
                    continue
                needs[name] = [value for value in before if among(value, values)]
                if not needs[name]:
                    yield (
                        f"`space.{path}.when` can never be met: it needs `{name}` to be "
                        f"{_listed(before)}, and by way of its other conditions {_listed(values)}"
                    )
                    break
        needs_of[path] = {name: values for name, values in needs.items() if values}


def _listed(values: Sequence[Any]) -> str:
    shown = " or ".join(repr(value) for value in values[:5])
    return f"{shown}, …" if len(values) > 5 else shown


def _condition(
    space: Mapping[str, Dimension], path: str, other: str, condition: Any
) -> Iterator[str]:
    where = f"`space.{path}.when`"
    parent = space.get(other)
    if parent is None:
        near = get_close_matches(other, list(space), 1, cutoff=0.5)
        hint = f"; did you mean `{near[0]}`?" if near else ""
        yield f"{where} names `{other}`, which `space` does not have{hint}"
    elif parent.choices is None:
        yield f"{where} names `{other}`, which has no `choices`"
    else:
        for value in wanted(condition):
            if not among(value, parent.choices):
                yield f"{where} needs `{other}` to be {value!r}, which is not one of its `choices`"


def choices_are_few(space: _Space) -> Iterator[str]:
    count = sum(len(dimension.choices or ()) for dimension in (space or {}).values())
    if count > MOST_CHOICES_IN_ALL:
        yield f"`space` has {count:,} `choices` in all; it may have {MOST_CHOICES_IN_ALL:,}"


def paths_do_not_overlap(space: _Space) -> Iterator[str]:
    for path in space or ():
        for other, dimension in (space or {}).items():
            if other.startswith(f"{path}.") and path not in (dimension.when or {}):
                yield (
                    f"`space.{other}` lies within `space.{path}`: name `{path}` in its `when`, so "
                    "that it is clear for which choices it varies"
                )


def trials_to_begin_with_are_few(enqueue: Sequence[Any], max_trials: int) -> Iterator[str]:
    if len(enqueue) > max_trials:
        yield f"`enqueue` has {len(enqueue):,} trials, more than `max_trials`, {max_trials:,}"


def enqueued_values_are_in_the_space(
    enqueue: Sequence[Mapping[str, Any]], space: _Space
) -> Iterator[str]:
    if space is None:
        return
    found = (
        sentence
        for index, values in enumerate(enqueue)
        for path, value in values.items()
        for sentence in _enqueued(space, f"`enqueue.{index}.{path}`", path, value)
    )
    yield from islice(found, _MOST_SENTENCES)


def _enqueued(space: Mapping[str, Dimension], where: str, path: str, value: Any) -> Iterator[str]:
    dimension = space.get(path)
    if dimension is None:
        near = get_close_matches(path, list(space), 1, cutoff=0.5)
        hint = f"; did you mean `{near[0]}`?" if near else ""
        yield f"{where} is not a field of `space`{hint}"
    elif not dimension.holds(value):
        yield f"{where} is {value!r:.100}, which is outside of the field's values in `space`"
