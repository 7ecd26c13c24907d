"""Errors of the HTTP layer, and the one place that renders an error: RFC 9457 problem details."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.api.faults import constraints
from service.api.faults.redaction import cut, shown
from service.api.problems.face import faces_of
from service.api.problems.message import message_of
from service.api.schemas.problems import Fault, Problem
from service.errors import (
    DomainError,
    IdempotencyInFlightError,
    QuotaExceededError,
    RateQuotaError,
)
from service.store.database import is_outage
from service.system import escaping

PROBLEM_JSON: Final = "application/problem+json"
_log = structlog.stdlib.get_logger(__name__)


# Not the faults again: many clients print the detail and `errors`.
_DETAIL: Final = "`errors` lists each with its path and what is allowed there."


class FaultsError(DomainError):
    status = 422

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__(_DETAIL, errors=[fault.model_dump() for fault in faults])
        self.title = f"{self.title}: {len(faults)} error{'s' if len(faults) > 1 else ''}"


class InvalidSpecError(FaultsError):
    code, title = "invalid_spec", "Invalid spec"


class RouteNotFoundError(DomainError):
    status, code, title = 404, "route_not_found", "The path does not exist"


class MethodNotAllowedError(DomainError):
    status, code, title = 405, "method_not_allowed", "The path does not allow this method"


class InternalError(DomainError):
    status, code, title = 500, "internal", "Internal server error"


class InvalidRequestError(FaultsError):
    code, title = "invalid_request", "Invalid request"


class InvalidJsonError(DomainError):
    status, code, title = 400, "invalid_json", "The body is not JSON"


class InvalidYamlError(DomainError):
    status, code, title = 400, "invalid_yaml", "The body is not YAML"


class InvalidMultipartError(DomainError):
    status, code, title = 400, "invalid_multipart", "The body is not a multipart form"


class ClientClosedError(DomainError):
    status, code, title = 400, "client_closed", "The client disconnected before the end of the body"


class InvalidHttpError(DomainError):
    status, code, title = 400, "invalid_http", "The request is not valid HTTP"


class RequestTimeoutError(DomainError):
    status, code, title = 408, "request_timeout", "The request took too long to arrive"


class HeadersTooLargeError(DomainError):
    status, code, title = 431, "headers_too_large", "The headers are too large"


class UnauthorizedError(DomainError):
    status, code, title = 401, "unauthorized", "A valid API key is required"


class UnknownHostError(DomainError):
    status, code, title = 421, "unknown_host", "The request is for another host"


class CrossSiteError(DomainError):
    status, code, title = 403, "cross_site", "Pages of other sites may not use this service"


class ForbiddenRouteError(DomainError):
    status, code, title = 403, "forbidden", "The request is not allowed"


class BodyTooLargeError(DomainError):
    status, code, title = 413, "body_too_large", "The body is too large"


class UnsupportedMediaTypeError(DomainError):
    status, code, title = 415, "unsupported_media_type", "Unsupported media type"


class RangeNotSatisfiableError(DomainError):
    status, code, title = 416, "range_not_satisfiable", "The range cannot be served"


class TooManyChecksError(DomainError):
    status, code, title = 429, "too_many_checks", "Too many files are being checked"


class TooManyUploadsError(DomainError):
    status, code, title = 429, "too_many_uploads", "Too many files are being uploaded"


class TooManyStreamsError(DomainError):
    status, code, title = 429, "too_many_streams", "Too many live streams are open"


class InsufficientStorageError(DomainError):
    status, code, title = 507, "insufficient_storage", "There is not enough space on the disk"


class OverloadedError(DomainError):
    status, code, title = 503, "overloaded", "Too many requests are in progress"


class NotReadyError(DomainError):
    status, code, title = 503, "not_ready", "A component is not ready"


class MlflowUnavailableError(DomainError):
    status, code, title = 503, "mlflow_unavailable", "MLflow is unreachable"


class DatabaseUnavailableError(DomainError):
    status, code, title = 503, "database_unavailable", "The database is unreachable"


_ROUTER_ERRORS: Final[dict[int, type[DomainError]]] = {
    404: RouteNotFoundError,
    405: MethodNotAllowedError,
}


def problem_of(request_path: str, request_id: str, error: DomainError) -> Problem:
    """The error as a problem document."""
    return Problem(
        type=f"urn:finetune:problem:{error.code}",
        title=error.title,
        status=error.status,
        detail=escaping.terminal(error.detail),
        message=message_of(error.title, error.detail, error.extra.get("errors") or ()),
        code=error.code,
        # A path may hold anything once it is unquoted; JSON in UTF-8 may not.
        instance=request_path.encode("utf-8", "replace").decode(),
        request_id=request_id,
        **error.extra,
    )


def render(
    scope: Scope, error: DomainError, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """The error as a response to the request with this ASGI scope."""
    path = scope["path"]
    problem = problem_of(path, scope["state"]["request_id"], error)
    content = problem.model_dump(mode="json", exclude_none=True)
    status, media_type = error.status, PROBLEM_JSON
    for face in faces_of(scope):
        if face.errors.is_face(path):
            content, media_type = {"error": face.errors.envelope(problem)}, "application/json"
            status = face.errors.status_of(status)
        elif face.errors.is_shared(path):
            content["error"] = face.errors.envelope(problem)
    return JSONResponse(
        content,
        status_code=status,
        headers={**_headers_for(error), **(headers or {})},
        media_type=media_type,
    )


async def refuse(error: DomainError, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the error from within a middleware."""
    await render(scope, error)(scope, receive, send)


def _headers_for(error: DomainError) -> dict[str, str]:
    if error.status == HTTPStatus.UNAUTHORIZED:
        return {"WWW-Authenticate": 'Bearer realm="finetune"'}
    if isinstance(error, RateQuotaError):
        return {"Retry-After": str(error.retry_after)}
    if isinstance(error, QuotaExceededError):
        # A full queue does not clear within seconds.
        return {"Retry-After": "30"}
    if error.status in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS):
        return {"Retry-After": "2"}
    if error.status == HTTPStatus.GATEWAY_TIMEOUT:
        # The openai client would ask, and wait, two more times.
        return {"x-should-retry": "false"}
    if error.status == HTTPStatus.CONFLICT and not isinstance(error, IdempotencyInFlightError):
        # The openai client retries a 409, which does not help with a state conflict.
        return {"x-should-retry": "false"}
    return {}


def add_handlers(app: FastAPI) -> None:
    """Render every kind of error as a problem."""
    app.add_exception_handler(DomainError, _domain_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(DBAPIError, _database_error)
    app.add_exception_handler(PoolTimeoutError, _database_error)


def _answer(
    request: Request, error: DomainError, headers: Mapping[str, str] | None = None
) -> Response:
    return render(request.scope, error, headers)


def _domain_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, DomainError)
    return _answer(request, error)


def _http_error(request: Request, error: Exception) -> Response:
    """404 and 405 of the router, and errors of the framework."""
    assert isinstance(error, HTTPException)
    kind = _ROUTER_ERRORS.get(error.status_code, DomainError)
    return _answer(request, kind(_router_detail(request, error)), error.headers)


def _router_detail(request: Request, error: HTTPException) -> str:
    """The router itself says only `Not Found` and `Method Not Allowed`."""
    path = cut(request.url.path)
    if error.status_code == HTTPStatus.NOT_FOUND:
        return f"There is no {path}; /openapi.json describes all paths."
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = (error.headers or {}).get("Allow", "other methods")
        return f"{path} does not allow {request.method}; use {allowed}."
    return str(error.detail)


def _validation_error(request: Request, error: Exception) -> Response:
    """A path, query or header parameter that its declaration refuses."""
    assert isinstance(error, RequestValidationError)
    faults = [parameter_fault(fault) for fault in error.errors()]
    return _answer(request, InvalidRequestError(faults))


def parameter_fault(error: dict[str, Any]) -> Fault:
    """The fault that corresponds to an error of FastAPI."""
    path = ".".join(str(part) for part in error["loc"])
    if error["type"] == "missing":
        return Fault(path=path, code="missing_field", message="required, but not given")
    given, message = shown(path, error.get("input")), constraints.of_parameter(error)
    return Fault(path=path, code="invalid_value", message=message, given=given)


def _database_error(request: Request, error: Exception) -> Response:
    """503 if the database is unreachable or too busy: the client may retry. Otherwise 500."""
    if not is_outage(error):
        raise error
    _log.error("database.unreachable", exc_info=error)
    return _answer(request, DatabaseUnavailableError("Try again in a moment."))
