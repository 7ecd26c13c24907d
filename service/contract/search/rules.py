"""Rules between the sections of a search. Each yields a sentence for each contradiction."""

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from math import prod
from typing import Any, Final

from service.contract.search.objectives import Objective
from service.contract.search.pruners import NoPruner, PrunerSpec
from service.contract.search.samplers import CmaEsSampler, GridSampler, SamplerSpec
from service.contract.search.space import (
    MOST_CHOICES_IN_ALL,
    Dimension,
    in_order,
    same,
    wanted,
)

MOST_COMBINATIONS: Final = 100_000

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


def objectives_fit_the_sampler(
    sampler: SamplerSpec, objectives: Sequence[Objective] | None
) -> Iterator[str]:
    if isinstance(sampler, CmaEsSampler) and len(objectives or ()) > 1:
        yield (
            "`sampler` `cmaes` looks for the best of one metric: use `tpe`, `nsgaii` or `gp` for "
            "several in `objective`"
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
    if space is None:
        return
    for path, dimension in space.items():
        for other, condition in (dimension.when or {}).items():
            yield from _condition(space, path, other, condition)
    for path in space.keys() - {*in_order(space)}:
        yield f"`space.{path}.when` depends on itself, by way of other conditions"


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
            if not any(same(value, choice) for choice in parent.choices):
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
    for index, values in enumerate(enqueue if space is not None else ()):
        for path, value in values.items():
            where = f"`enqueue.{index}.{path}`"
            dimension = (space or {}).get(path)
            if dimension is None:
                near = get_close_matches(path, list(space or {}), 1, cutoff=0.5)
                hint = f"; did you mean `{near[0]}`?" if near else ""
                yield f"{where} is not a field of `space`{hint}"
            elif not dimension.holds(value):
                yield f"{where} is {value!r}, which is outside of the field's values in `space`"
