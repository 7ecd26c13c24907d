"""Refuses query parameters that a route does not have: a misspelt filter would filter nothing."""

from typing import Final

from fastapi import Request
from fastapi.dependencies.utils import get_flat_params, request_params_to_args
from fastapi.params import Query

from service.api.faults.names import nearest
from service.api.faults.redaction import cut, shown
from service.api.problems.errors import InvalidRequestError, parameter_fault
from service.api.schemas.problems import Fault

_MOST: Final = 20
"""Faults listed in one answer."""
# What other APIs call them.
_ELSEWHERE: Final = {
    "cursor": "after",
    "label": "metadata",
    "labels": "metadata",
    "page": "after",
    "page_size": "limit",
    "per_page": "limit",
    "size": "limit",
    "starting_after": "after",
    "tag": "metadata",
    "type": "task",
}


def refuse_unknown(request: Request) -> None:
    """Raises InvalidRequestError with the unknown parameters and those with invalid values."""
    if not request.query_params:
        return
    declared = get_flat_params(request.scope["route"].dependant)
    fields = [field for field in declared if isinstance(field.field_info, Query)]
    known = [field.alias for field in fields]
    deep = deep_objects(request)
    unknown = [
        name
        for name in request.query_params
        if name not in known and name.partition("[")[0] not in deep
    ][:_MOST]
    if not unknown:
        return
    _, errors = request_params_to_args(fields, request.query_params)
    faults = [_unknown(name, request.query_params[name], known) for name in unknown]
    raise InvalidRequestError([*faults, *(parameter_fault(error) for error in errors)])


def deep_objects(request: Request) -> list[str]:
    """Parameters of the route that come as `name[key]=value`."""
    described = (request.scope["route"].openapi_extra or {}).get("parameters", ())
    return [each["name"] for each in described if each.get("style") == "deepObject"]


def _unknown(name: str, value: str, known: list[str]) -> Fault:
    meant = _ELSEWHERE.get(name.lower())
    near = meant if meant in known else nearest(name, known)
    taken = ", ".join(f"`{item}`" for item in known) or "none"
    hint = f"did you mean `{near}`?" if near else f"this route takes {taken}"
    path = f"query.{cut(name)}"
    return Fault(
        path=path,
        code="unknown_parameter",
        message=f"unknown query parameter `{cut(name)}`; {hint}",
        given=shown(path, value),
        allowed=known,
        suggestion=near,
    )
