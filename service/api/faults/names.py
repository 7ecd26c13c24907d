"""The nearest right name for a wrong one."""

from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher
from functools import cache, lru_cache
from typing import Any, Final

from pydantic import BaseModel

from service.api.faults.walk import kind_of, models_in
from service.contract.spec.spec import JobSpec
from service.contract.spec.training import TrainingSpec
from service.contract.training_arguments.aliases import ALIASES
from service.contract.training_arguments.common_names import COMMON_NAMES, COMMON_TASKS

_LONGEST_NAME: Final = 60
_NEAR: Final = 0.6
_NEARER: Final = 0.75
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


def nearest_value(path: str, given: str, allowed: Iterable[str]) -> str | None:
    """As `nearest`; a task has other names in other tools, too."""
    if path in ("task", "task.type"):
        plain = given[:_LONGEST_NAME].lower().replace("_", "-")
        if plain in COMMON_TASKS:
            return COMMON_TASKS[plain]
    return nearest(given, allowed)


def nearest_field(name: str, owner: type[BaseModel], spec: Any) -> str | None:
    """The right name for a field that `owner` does not have; dotted if it lives elsewhere.

    `spec` is the whole input: a section may be of several kinds, with other fields each."""
    common = _common_name(name, owner, spec)
    if common is not None:
        return common
    elsewhere = _all_fields()
    older = ALIASES if owner is TrainingSpec else {}
    here = (*owner.model_fields, *older)
    # `model` in the section `hub` means its `model_id` rather than the section `model`.
    is_root = name in JobSpec.model_fields
    if name in elsewhere and not (is_root and _closest(name, here, _NEARER)):
        return elsewhere[name]
    own = nearest(name, here)
    if own is not None:
        return older.get(own, own)
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


def lacks(spec: Any, place: str) -> bool:
    """Whether the section of this path is given in `spec`, and of a kind without the field."""
    kind = _kind(spec, place)
    return kind is not None and place.rpartition(".")[2] not in kind.model_fields


def _has(spec: Any, place: str) -> bool:
    """Whether the section that is given in `spec` is of a kind with the field of this path."""
    return _kind(spec, place) is not None and not lacks(spec, place)


def _kind(spec: Any, place: str) -> type[BaseModel] | None:
    """Of the section of this path; None if it is not given."""
    kind: type[BaseModel] = JobSpec
    for name in place.split(".")[:-1]:
        definition = kind.model_fields.get(name)
        spec = spec.get(name) if isinstance(spec, dict) else None
        if definition is None:
            return kind
        if isinstance(spec, str):  # short for an object of that kind
            spec = {str(definition.discriminator): spec}
        found = kind_of(definition, spec)
        if found is None:
            return None
        kind = found
    return kind


def needs(spec: Any, place: str) -> list[str]:
    """What the section of this path must have besides the field, if it is not given yet."""
    section, _, field = place.partition(".")
    if not field or (isinstance(spec, dict) and spec.get(section) is not None):
        return []
    definition = JobSpec.model_fields[section]
    having = [m for m in models_in(definition.annotation) if field.split(".")[0] in m.model_fields]
    tag = definition.discriminator
    required = [name for name, each in having[0].model_fields.items() if each.is_required()]
    if tag and len(list(models_in(definition.annotation))) > 1:
        required.insert(0, str(tag))
    return [name for name in dict.fromkeys(required) if name != field]


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
