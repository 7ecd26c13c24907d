"""An example of each problem for the OpenAPI document, made as the answers are."""

from functools import cache
from typing import Any, Final

from service.api.problems import errors
from service.errors import (
    ArtifactGoneError,
    DomainError,
    ForbiddenError,
    JobEndedError,
    JobNotFoundError,
    PredictionTimeoutError,
)

_JOB: Final = "job-0199a0b1c2d37e4f85a6b7c8d9e0f1a2"
_ERRORS: Final[dict[int, DomainError]] = {
    error.status: error
    for error in (
        errors.InvalidJsonError("The body is not valid JSON: Expecting value at line 1, column 1."),
        errors.UnauthorizedError("Send a valid key as `Authorization: Bearer <key>`."),
        ForbiddenError(
            "This needs the role `member`; this key has the role `viewer`. Ask an admin of the "
            "project for such a key.",
            needs="jobs:write",
            role="member",
        ),
        JobNotFoundError(_JOB),
        JobEndedError("The job has already ended: succeeded.", state="succeeded"),
        ArtifactGoneError(
            "The job's finished model was removed to make room: clone the job to make it again."
        ),
        errors.BodyTooLargeError("A body may have at most 1048576 bytes."),
        errors.UnsupportedMediaTypeError("Send the body as application/json or application/yaml."),
        errors.RangeNotSatisfiableError("The content has 1024 bytes."),
        errors.TooManyChecksError("4 files are being checked. Try again in a moment."),
        errors.DatabaseUnavailableError("Try again in a moment."),
        PredictionTimeoutError("The answer was not ready within 300 s."),
        errors.InsufficientStorageError(
            "The disk has 300 MiB of 100,000 MiB free, and the last 256 MiB are kept for jobs and "
            "the database: delete files or jobs."
        ),
    )
}


@cache
def example_of(status: int) -> dict[str, Any] | None:
    """None for 422, whose example is that of the model."""
    if status not in _ERRORS:
        return None
    problem = errors.problem_of(f"/v1/jobs/{_JOB}", "4f0c2a6d", _ERRORS[status])
    return problem.model_dump(mode="json", exclude_none=True)
