"""Adds to the OpenAPI document which key each operation needs, and the header that names a
project."""

from collections.abc import Iterator
from typing import Any, Final

from fastapi import FastAPI
from fastapi.routing import APIRoute, RouteContext, iter_route_contexts

from service.api.http.principal import PROJECT_HEADER, needs_of
from service.api.problems.examples import example_of
from service.contract.roles import LOWEST_ROLE, Permission, Role

Schema = dict[str, Any]
_PROJECT_PARAMETER: Final[Schema] = {
    "name": PROJECT_HEADER,
    "in": "header",
    "required": False,
    "description": "Name or id of the project to act in: for an operator any; a project's key can "
    "only name its own. Without it an operator sees all projects, and what they make belongs to "
    "`default`.",
    "schema": {"type": "string", "maxLength": 64},
}


def add_access(app: FastAPI, document: Schema) -> None:
    problem = {"$ref": "#/components/schemas/Problem"}
    for route in documented_routes(app):
        for permission in needs_of(route.dependant):
            for method in route.methods or ():
                operation = document["paths"][route.path_format][method.lower()]
                _add(operation, permission, problem)


def documented_routes(app: FastAPI) -> Iterator[RouteContext]:
    """Also those of included routers, which FastAPI keeps apart from `app.routes`."""
    for context in iter_route_contexts(app.routes):
        if isinstance(context.route, APIRoute) and context.include_in_schema:
            yield context


def _add(operation: Schema, permission: Permission | None, problem: Schema) -> None:
    operation.setdefault("parameters", []).append(_PROJECT_PARAMETER)
    responses = operation["responses"]
    if "404" not in responses:
        responses["404"] = _response(404, "There is no such project.", problem)
    if permission is None:
        return
    operation["security"] = [{"key": [str(permission)]}]
    lowest = LOWEST_ROLE[permission]
    who = " and ".join(f"`{role}`" for role in Role if role.includes(lowest))
    what = f"The key does not allow this: it needs `{permission}`, which {who} may do."
    responses["403"] = _response(403, what, problem)


def _response(status: int, description: str, problem: Schema) -> Schema:
    return {
        "description": description,
        "content": {"application/problem+json": {"schema": problem, "example": example_of(status)}},
        "headers": {"X-Request-Id": {"required": True, "schema": {"type": "string"}}},
    }
