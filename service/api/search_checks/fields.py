"""What the field at a path of a job spec takes, by its type."""

from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from service.contract.section import SpecModel
from service.contract.spec import JobSpec
from service.contract.training import TrainingSpec
from service.contract.training_arguments.aliases import ALIASES, SWITCHES


def numbers(path: str) -> frozenset[type]:
    """`int`, `float`, both, or neither: the numbers that the field takes, in any kind of its
    section. An `int` field takes no fractions."""
    found = {member for annotation in _annotations(path) for member in _members(annotation)}
    if any(_is_free(member) for member in found):
        return frozenset({int, float})
    return frozenset(kind for kind in (int, float) if kind in found)


def current_name(path: str) -> str | None:
    """Today's path of an option of `training` that has an older name; None for any other."""
    section, _, name = path.partition(".")
    if section != "training" or name in TrainingSpec.model_fields:
        return None
    current = ALIASES.get(name) or SWITCHES.get(name, (None, ""))[0]
    return None if current is None else f"training.{current}"


def exists(path: str) -> bool:
    """Whether any kind of the sections on the way has it."""
    return bool(_annotations(path))


def _annotations(path: str) -> list[Any]:
    found: list[Any] = [JobSpec]
    for part in path.split("."):
        found = [inner for each in found for inner in _inner(each, part)]
    return found


def _inner(annotation: Any, name: str) -> Iterator[Any]:
    for member in _members(annotation):
        if isinstance(member, type) and issubclass(member, SpecModel):
            if name in member.model_fields:
                yield member.model_fields[name].annotation
        elif get_origin(member) is dict:
            yield get_args(member)[1]
        elif _is_free(member):
            yield member


def _members(annotation: Any) -> Iterator[Any]:
    """The types of a union, without annotations."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _members(get_args(annotation)[0])
    elif origin in (Union, UnionType):
        for argument in get_args(annotation):
            yield from _members(argument)
    else:
        yield annotation


def _is_free(member: Any) -> bool:
    return member is Any or getattr(member, "__name__", "") == "JsonValue"
