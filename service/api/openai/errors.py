"""Errors in the form that OpenAI's clients parse: `{"error": {message, type, param, code}}`."""

from http import HTTPStatus
from typing import Any, Final

from service.api.schemas.problems import Problem

PREFIXES: Final = (
    "/v1/fine_tuning/",
    "/v1/uploads",
    "/v1/models",
    "/v1/chat/",
    "/v1/completions",
)
"""Paths that only OpenAI's API has: their errors have this shape alone."""
_SHARED_PREFIX: Final = "/v1/files"
"""Both APIs have these paths: their errors are problems with this shape as a member."""
_TYPES: Final = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
}
_CODES: Final = {"unauthorized": "invalid_api_key"}


def is_face(path: str) -> bool:
    return path.startswith(PREFIXES)


def is_shared(path: str) -> bool:
    return path.startswith(_SHARED_PREFIX)


def status_of(status: int) -> int:
    """OpenAI answers 400 where the native API answers 422."""
    if status == HTTPStatus.UNPROCESSABLE_ENTITY:
        return int(HTTPStatus.BAD_REQUEST)
    return status


def envelope(problem: Problem) -> dict[str, Any]:
    """The problem as OpenAI's clients expect an error. `param` is the first field that is wrong."""
    path = problem.errors[0].path if problem.errors else ""
    return {
        "message": problem.message,
        "type": _type(problem.status),
        "param": path.removeprefix("body.").removeprefix("query.") or None,
        "code": _CODES.get(problem.code, problem.code),
    }


def _type(status: int) -> str:
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return "server_error"
    return _TYPES.get(HTTPStatus(status), "invalid_request_error")


def describe(document: dict[str, Any]) -> None:
    """Declare in the OpenAPI document that errors of these paths have this shape."""
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/OpenAIError"}}}
    for path, operations in document["paths"].items():
        if not is_face(path):
            continue
        for operation in operations.values():
            responses = operation["responses"]
            if (refused := responses.pop("422", None)) is not None:
                responses.setdefault("400", refused)
            for status, response in responses.items():
                if int(status) >= HTTPStatus.BAD_REQUEST:
                    response["content"] = content
