"""What the field at a path of a job spec takes, by its type, and whether a fault is about it."""

from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

from service.api.schemas.problems import Fault
from service.contract.fields.section import SpecModel
from service.contract.search.space import Dimension
from service.contract.spec.spec import JobSpec
from service.contract.spec.training import TrainingSpec
from service.contract.training_arguments.aliases import ALIASES, SWITCHES

_NAMES: Final = ("unknown_field", "moved_option", "unsupported_option")
_KINDS: Final = ("invalid_type", "invalid_value")


def numbers(path: str) -> frozenset[type]:
    """`int`, `float`, both, or neither: the numbers that the field takes, in any kind of its
    section. An `int` field takes no fractions."""
    found = {member for annotation in _annotations(path) for member in _members(annotation)}
    if any(_is_free(member) for member in found):
        return frozenset({int, float})
    return frozenset(kind for kind in (int, float) if kind in found)


def older_name(path: str, where: str) -> Fault | None:
    """The fault at `where` if an option of `training` has another name today."""
    section, _, name = path.partition(".")
    if section != "training" or name in TrainingSpec.model_fields:
        return None
    current = ALIASES.get(name) or SWITCHES.get(name, (None, ""))[0]
    if current is None:
        return None
    message = f"an older name of the field: use `training.{current}`"
    suggestion = f"training.{current}"
    return Fault(path=where, code="unknown_field", message=message, suggestion=suggestion)


def exists(path: str) -> bool:
    """Whether any kind of the sections on the way has it."""
    return bool(_annotations(path))


def typed(path: str, dimension: Dimension) -> Dimension:
    """With the type of the field's numbers, where it says which they are."""
    takes = numbers(path)
    if dimension.choices is not None or not takes or dimension.type is not None:
        return dimension
    is_integer = takes == {int} or (int in takes and dimension.is_integer)
    return dimension.model_copy(update={"type": "int" if is_integer else "float"})


def is_of(path: str, fault: Fault) -> bool:
    """Whether the fault is of the field, or of a part of it, or says that it does not exist."""
    return path.startswith(f"{fault.path}.") or f"{fault.path}.".startswith(f"{path}.")


def unknown(path: str, fault: Fault) -> Fault | None:
    """What is wrong with `path` if the fault is that the field, or a section on the way, does not
    exist."""
    is_above = path.startswith(f"{fault.path}.")
    if fault.code in _NAMES and (is_above or fault.path == path):
        return with_whole_name(fault)
    if fault.code in _KINDS and is_above:
        message = f"`{fault.path}` has no fields of its own"
        return Fault(path=path, code="unknown_field", message=message, suggestion=fault.path)
    return None


def with_whole_name(fault: Fault) -> Fault:
    """With the path of the name that is suggested, which a job's faults have from its section."""
    near = fault.suggestion
    if near is None or fault.code not in _NAMES:
        return fault
    # What follows the question is about the sections of `job`.
    meant, mark, _ = fault.message.partition("?")
    whole = f"{fault.path.rpartition('.')[0]}.{near}"
    whole = whole if exists(whole) else near
    message = f"{meant}{mark}".replace(f"`{near}`", f"`{whole}`")
    return fault.model_copy(update={"message": message, "suggestion": whole})


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
