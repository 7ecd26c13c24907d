"""The faults of a request body other than a spec, each with the path of its field."""

from typing import Final

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from service.api.faults import constraints
from service.api.faults.names import nearest
from service.api.faults.redaction import cut, shown
from service.api.schemas.problems import Fault

_MOST_FAULTS: Final = 20
_KINDS: Final = frozenset({"str", "list", "dict", "int", "float", "bool"})


def faults_of(kind: type[BaseModel], error: ValidationError) -> list[Fault]:
    """The first faults, one for each field of a body that `kind` refuses."""
    found: dict[str, Fault] = {}
    for each in error.errors(include_url=False)[:_MOST_FAULTS]:
        fault = _fault(kind, each)
        found.setdefault(fault.path, fault)
    # If a field may be a list or a text, a wrong item of the list is also reported as "not a
    # text" for the whole field: that fault says nothing.
    outer = {
        path for path in found if any(other.startswith((f"{path}.", f"{path}[")) for other in found)
    }
    return [fault for path, fault in found.items() if path not in outer]


def _fault(kind: type[BaseModel], error: ErrorDetails) -> Fault:
    path = cut(_path(error["loc"]))
    if error["type"] == "missing":
        return Fault(path=path, code="missing_field", message="required, but not given")
    if error["type"] == "extra_forbidden":
        name = str(error["loc"][-1])
        near = nearest(name, kind.model_fields) if len(error["loc"]) == 1 else None
        hint = f"; did you mean `{near}`?" if near else ""
        return Fault(
            path=path,
            code="unknown_field",
            message=f"unknown parameter{hint}",
            given=shown(path, error["input"]),
            suggestion=near,
        )
    return Fault(
        path=path,
        code="invalid_value",
        message=constraints.of_parameter(error),
        given=shown(path, error["input"]),
    )


def _path(loc: tuple[int | str, ...]) -> str:
    """`messages[2].content`; without the kinds of a union, which are not in the body."""
    text = ""
    for part in loc:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part.isidentifier() and part not in _KINDS:
            text += f".{part}"
    return text.removeprefix(".")
