"""The nearest right name for a wrong one."""

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from functools import cache
from typing import Final

from pydantic import BaseModel

from service.api.faults.walk import models_in
from service.contract.aliases import ALIASES
from service.contract.spec import JobSpec
from service.contract.training import TrainingSpec

_LONGEST_NAME: Final = 60
_NEAR: Final = 0.6
_VERY_NEAR: Final = 0.85
_SHORTEST_PART: Final = 4


def nearest(name: str, allowed: Iterable[str]) -> str | None:
    """The closest of `allowed`, or the first that contains `name`; None if none is near."""
    name = name[:_LONGEST_NAME].lower().replace("-", "_")
    by_plain = {item.lower().replace("-", "_"): item for item in allowed}
    close = get_close_matches(name, by_plain, n=1, cutoff=_NEAR)
    if close:
        return by_plain[close[0]]
    holding = [item for item in by_plain if len(name) >= _SHORTEST_PART and name in item]
    return by_plain[holding[0]] if holding else None


def nearest_field(name: str, owner: type[BaseModel]) -> str | None:
    """The right name for a field that `owner` does not have; dotted if it lives elsewhere."""
    elsewhere = _all_fields()
    if name in elsewhere:
        return elsewhere[name]
    own = nearest(name, owner.model_fields)
    if own is None and owner is TrainingSpec:
        own = ALIASES.get(nearest(name, ALIASES) or "")
    if own is not None:
        return own
    close = get_close_matches(name[:_LONGEST_NAME], elsewhere, n=1, cutoff=_VERY_NEAR)
    return elsewhere[close[0]] if close else None


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
