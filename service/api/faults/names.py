"""The nearest right name for a wrong one."""

from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher
from functools import cache, lru_cache
from typing import Any, Final

from pydantic import BaseModel

from service.api.faults.walk import kind_of, models_in
from service.contract.spec import JobSpec
from service.contract.training import TrainingSpec
from service.contract.training_arguments.aliases import ALIASES
from service.contract.training_arguments.common_names import COMMON_NAMES

_LONGEST_NAME: Final = 60
_NEAR: Final = 0.6
_VERY_NEAR: Final = 0.85
_SHORTEST_PART: Final = 4


def nearest(name: str, allowed: Iterable[str]) -> str | None:
    """The closest of `allowed`, or the first that contains `name`; None if none is near."""
    name = name[:_LONGEST_NAME].lower().replace("-", "_")
    by_plain = {item.lower().replace("-", "_"): item for item in allowed}
    close = _closest(name, by_plain, _NEAR)
    if close is not None:
        return by_plain[close]
    holding = [item for item in by_plain if len(name) >= _SHORTEST_PART and name in item]
    return by_plain[holding[0]] if holding else None


def nearest_field(name: str, owner: type[BaseModel], spec: Any) -> str | None:
    """The right name for a field that `owner` does not have; dotted if it lives elsewhere.

    `spec` is the whole input: a section may be of several kinds, with other fields each."""
    common = _common_name(name, owner, spec)
    if common is not None:
        return common
    elsewhere = _all_fields()
    if name in elsewhere:
        return elsewhere[name]
    own = nearest(name, owner.model_fields)
    if own is None and owner is TrainingSpec:
        own = ALIASES.get(nearest(name, ALIASES) or "")
    if own is not None:
        return own
    close = _closest(name[:_LONGEST_NAME], elsewhere, _VERY_NEAR)
    return elsewhere[close] if close is not None else None


def _common_name(name: str, owner: type[BaseModel], spec: Any) -> str | None:
    """What another tool's name means: in `owner` itself where it has that field, else the first
    place that the sections of `spec` have."""
    places = COMMON_NAMES.get(name[:_LONGEST_NAME].lower().replace("-", "_"), ())
    for place in places:
        section, _, field = place.partition(".")
        owners: set[type[BaseModel]] = set(models_in(JobSpec.model_fields[section].annotation))
        if owner in owners and field in owner.model_fields:
            return field
    return next((place for place in places if _has(spec, place)), places[0] if places else None)


def _has(spec: Any, place: str) -> bool:
    """Whether the section that is given in `spec` is of a kind with this field."""
    section, _, field = place.partition(".")
    given = spec.get(section) if isinstance(spec, dict) else None
    definition = JobSpec.model_fields[section]
    if isinstance(given, str):  # short for an object of that kind
        given = {str(definition.discriminator): given}
    kind = kind_of(definition, given)
    return kind is not None and field in kind.model_fields


def _closest(name: str, allowed: Iterable[str], cutoff: float) -> str | None:
    """As `difflib.get_close_matches` with `n=1`, but only a name that may be closer than the best
    so far is compared in full."""
    best: tuple[float, str] = (cutoff, "")
    matcher, letters = SequenceMatcher(b=name), _letters(name)
    for item in allowed:
        least = best[0] * (len(item) + len(name)) / 2
        if min(len(item), len(name)) < least or len(item) - len(_letters(item) - letters) < least:
            continue
        matcher.set_seq1(item)
        if matcher.quick_ratio() >= best[0]:
            best = max(best, (matcher.ratio(), item))
    return best[1] or None


@lru_cache(maxsize=1024)
def _letters(name: str) -> frozenset[str]:
    return frozenset(name)


@cache
def _all_fields() -> dict[str, str]:
    """Name → dotted path, for names that exist in one place of the spec only."""
    found: dict[str, set[str]] = {}
    for name, path in _walk(JobSpec, ""):
        found.setdefault(name, set()).add(path)
    return {name: paths.pop() for name, paths in found.items() if len(paths) == 1}


def _walk(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, str]]:
    for name, field in model.model_fields.items():
        yield name, f"{prefix}{name}"
        for inner in models_in(field.annotation):
            yield from _walk(inner, f"{prefix}{name}.")
