"""Maps pydantic's location of an error to the place in the client's own input."""

from collections.abc import Iterator
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from service.api.faults.redaction import cut
from service.contract.fields.section import SpecModel
from service.contract.spec.spec import JobSpec
from service.contract.training_arguments.aliases import ALIASES

Path = tuple[str | int, ...]
FieldPath = tuple[str, ...]
_KEY = "[key]"


@dataclass(frozen=True)
class Place:
    """Where an error is: `path` in the input, and the field of the spec at that place."""

    path: Path
    field_path: FieldPath
    """The field by its names in the spec, not by older ones; without indexes and keys."""
    owner: type[SpecModel] | None
    """The model whose field the last part of the path is (or should be)."""
    field: FieldInfo | None
    models: tuple[type[SpecModel], ...]
    """What may be at the place itself, or in a list or mapping there: one model, several kinds of a
    union, or none."""
    value: Any
    is_key: bool = False
    """The fault is the key of a mapping, not its value."""
    spec: Any = None
    """The whole input."""


def locate(loc: tuple[str | int, ...], given: Any, root: type[SpecModel] = JobSpec) -> Place:
    """Follow `loc` through the spec, which `root` describes, and the input together.

    Pydantic names the kind of a union, the new name of an option given by its older one, and the
    index in a list that was given as a single text; none of them is in the client's input.
    """
    spec = given
    path: list[str | int] = []
    field_path: list[str] = []
    owner: type[SpecModel] | None = None
    field: FieldInfo | None = None
    models: tuple[type[SpecModel], ...] = (root,)
    is_field = True  # what the next part names, not one of several sections
    for part in loc:
        if part == _KEY:
            return Place(
                tuple(path), tuple(field_path), None, None, (), given, is_key=True, spec=spec
            )
        if not is_field or not models:
            is_field = True
            if _holds(given, part):
                path.append(part)
                given = given[part]
        elif len(models) > 1:
            tag = field.discriminator if field else None
            models = tuple(model for model in models if part in kinds(model, str(tag)))
        else:
            owner = models[0]
            field = owner.model_fields.get(str(part))
            models = tuple(models_in(field.annotation)) if field else ()
            is_field = field is None or not _has_several(field.annotation)
            field_path.append(str(part))
            if isinstance(given, dict):  # else a text that is short for the object
                name = _name_in(given, str(part))
                path.append(name)
                given = given.get(name)
    return Place(tuple(path), tuple(field_path), owner, field, models, given, spec=spec)


def _holds(given: Any, part: str | int) -> bool:
    if isinstance(given, dict):
        return part in given
    return isinstance(given, list) and isinstance(part, int) and part < len(given)


def _name_in(given: dict[str, Any], name: str) -> str:
    older = (old for old, new in ALIASES.items() if new == name and old in given)
    return name if name in given else next(older, name)


def as_given(given: Any, path: Path) -> Path:
    """`path` with the older names that the client used."""
    *parents, last = path
    holder = at(given, tuple(parents))
    return (*parents, _name_in(holder, str(last))) if isinstance(holder, dict) else path


def models_in(annotation: Any) -> Iterator[type[SpecModel]]:
    """The models that a type names, unions and annotations opened."""
    if isinstance(annotation, type) and issubclass(annotation, SpecModel):
        yield annotation
    for argument in get_args(annotation):
        yield from models_in(argument)


def _has_several(annotation: Any) -> bool:
    """Whether it is a list or a mapping, perhaps an optional one: of sections, if of any."""
    inner = get_args(annotation)
    return get_origin(annotation) in (list, dict) or any(_has_several(each) for each in inner)


def kind_of(field: FieldInfo, value: Any) -> type[SpecModel] | None:
    """The model that an object given for a field is of; None for anything else."""
    models = tuple(models_in(field.annotation))
    if not models or not isinstance(value, dict):
        return None
    tag = str(field.discriminator)
    named = (model for model in models if value.get(tag) in kinds(model, tag))
    return next(named, models[0])


def kinds(model: type[BaseModel], discriminator: str) -> tuple[str, ...]:
    """The values of the field `discriminator` that mean this model."""
    field = model.model_fields.get(discriminator)
    return choices(field) if field else ()


def choices(field: FieldInfo) -> tuple[str, ...]:
    """The values that a field of a Literal type takes, opened from `| None`; as YAML has them."""
    values = dict.fromkeys(_literals(field.annotation))
    return tuple(str(value).lower() if isinstance(value, bool) else str(value) for value in values)


def _literals(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    elif get_origin(annotation) in (Annotated, Union, UnionType):
        for argument in get_args(annotation):
            yield from _literals(argument)


def dotted(path: Path) -> str:
    return ".".join(cut(str(part)) for part in path)


def at(given: Any, path: Path) -> Any:
    """The value at `path`; None if there is none."""
    for part in path:
        if not _holds(given, part):
            return None
        given = given[part]
    return given
