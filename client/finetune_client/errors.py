"""What can go wrong, as exceptions. All are FineTuneErrors."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import httpx

_LONGEST_TEXT: Final = 500


class FineTuneError(Exception):
    """Every error of this package."""

    code: str = ""
    """What is wrong, in one word that programs can rely on."""
    action: str = ""
    """What to do about it."""


class InvalidArgumentError(FineTuneError, ValueError):
    """An argument that cannot be sent: an address, a key, or a value that JSON cannot hold."""

    code = "invalid_argument"
    action = "Correct the argument that the message names."


class UnsafeNameError(FineTuneError):
    """The service names a file that cannot be written safely below the chosen folder."""

    code = "unsafe_name"
    action = "Nothing was written under this name. Ask whoever runs the service."


class WaitTimeoutError(FineTuneError, TimeoutError):
    """The job has not ended within the time that `wait` was given."""

    code = "wait_timeout"
    action = "The job is not stopped: wait again, or cancel it."


class APIConnectionError(FineTuneError):
    """No answer from the service."""

    code = "unreachable"
    action = "Start the service (`finetune up`), or set FINETUNE_URL to its address."


class APITimeoutError(APIConnectionError):
    """The service did not answer in time."""

    code = "timeout"
    action = "Try again, or give the client a longer `timeout`."


class UnexpectedAnswerError(APIConnectionError):
    """Something answers, but not like the service."""

    code = "unexpected_answer"
    action = "Set FINETUNE_URL to the address of the service itself."


class DamagedDownloadError(APIConnectionError):
    """A download arrived whole, but not as the service announced it."""

    code = "damaged_download"
    action = "Download it again."


class APIError(FineTuneError):
    """The service answered with an error. The message says what is wrong and what to do."""

    def __init__(
        self, status: int, problem: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> None:
        parts = (problem.get(name) for name in ("message", "detail", "title"))
        super().__init__(next(filter(None, parts), f"HTTP {status}"))
        self.status = status
        self.problem = dict(problem)
        """The RFC 9457 document of the answer."""
        self.headers = httpx.Headers(headers or {})
        self.code = str(self.problem.get("code", ""))
        """What is wrong, in one word that programs can rely on; empty if a proxy answered."""
        self.action = _action(self.code, self.errors) or type(self).action

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions are made again from `args`, which is the message alone.
        return type(self), (self.status, self.problem, dict(self.headers))

    @property
    def message(self) -> str:
        """What is wrong and what to do, in one line."""
        return str(self)

    @property
    def errors(self) -> list[dict[str, Any]]:
        """Every fault of an invalid request: `path`, `code`, `message` and perhaps `suggestion`."""
        found = self.problem.get("errors")
        return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []

    @property
    def request_id(self) -> str | None:
        """What finds this request in the service's log."""
        found = self.problem.get("request_id") or self.headers.get("x-request-id")
        return str(found) if found else None


class BadRequestError(APIError):
    """400: the body cannot be read."""

    action = "Correct the request as the message says."


class AuthenticationError(APIError):
    """401: a valid API key is required."""

    action = "Set FINETUNE_API_KEY to a key of the service; `finetune keys create` makes one."


class PermissionDeniedError(APIError):
    """403: the key does not allow this."""

    action = "Use a key whose role or project allows it."


class NotFoundError(APIError):
    """404: it does not exist, or not in this project."""

    action = "Check the id, and that FINETUNE_PROJECT names its project."


class ConflictError(APIError):
    """409: its current state does not allow this."""

    action = "Read its state again; the `actions` of a job are what is possible now."


class GoneError(APIError):
    """410: it was removed to make room."""

    action = "Retry or clone the job, which makes its files again."


class InvalidRequestError(APIError):
    """422: `errors` names every fault."""

    action = "Correct the fields that `errors` names."


class InvalidSpecError(InvalidRequestError):
    """422: the spec of a job has the faults in `errors`."""


class RateLimitError(APIError):
    """429: a limit is reached."""

    action = "Try again later, or ask the project's owner for a higher quota."


class ServerError(APIError):
    """5xx: the service, or what it needs, does not work at the moment."""

    action = "Try again. If it lasts, `request_id` finds the reason in the service's log."


class _FailedError(FineTuneError):
    """`code`, `message` and `action` are those of the `failure`; `id` is what has failed."""

    def __init__(self, id: str, code: str, message: str, action: str) -> None:
        super().__init__(id, code, message, action)
        self.id = id
        self.code = code
        self.message = message
        self.action = action

    def __str__(self) -> str:
        return f"{self.id}: {self.code}: {self.message} {self.action}".strip()


class JobFailedError(_FailedError):
    """The job has failed, or was cancelled."""


class PredictionFailedError(_FailedError):
    """The model did not answer."""


_ACTIONS: Final = {
    "idempotency_key_reused": "Give another `idempotency_key`, or none.",
    "insufficient_storage": "Delete jobs or files, or ask whoever runs the service for space.",
    "no_worker": "Start a worker, then try again.",
    "project_archived": "Choose another project, or unarchive this one.",
    "webhook_disabled": "Enable the webhook first.",
}
"""For codes about which more is known than for their status."""


def _action(code: str, faults: Sequence[Mapping[str, Any]]) -> str:
    """What to do about a code; of a wrong spec the nearest right values too."""
    names = [(fault.get("path"), fault.get("suggestion")) for fault in faults]
    meant = [f"{path}: did you mean {better!r}?" for path, better in names if path and better]
    return " ".join(meant) or _ACTIONS.get(code, "")


_BY_STATUS: Final[dict[int, type[APIError]]] = {
    400: BadRequestError,
    401: AuthenticationError,
    403: PermissionDeniedError,
    404: NotFoundError,
    409: ConflictError,
    410: GoneError,
    422: InvalidRequestError,
    429: RateLimitError,
}


def of_answer(answer: httpx.Response) -> APIError:
    """The error of an answer whose body has been read."""
    try:
        problem = answer.json()
    except (ValueError, RecursionError):
        problem = None
    if not isinstance(problem, dict):  # a proxy's page, not the service's
        problem = {"title": answer.reason_phrase, "detail": answer.text[:_LONGEST_TEXT]}
    status = answer.status_code
    kind = _BY_STATUS.get(status, ServerError if status >= 500 else APIError)
    if problem.get("code") == "invalid_spec":
        kind = InvalidSpecError
    return kind(status, {"status": status, **problem}, answer.headers)
