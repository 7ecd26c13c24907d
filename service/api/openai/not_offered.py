"""What OpenAI's clients can ask for and this service does not offer, with the reason."""

from typing import Annotated, Any, Final, NoReturn

from fastapi import APIRouter, Path

from service.api.openapi import problems
from service.api.visitor import NEEDS_JOBS_READ, NEEDS_JOBS_WRITE
from service.errors import DomainError

router = APIRouter(prefix="/v1/fine_tuning", tags=["openai"])

_PERMISSIONS: Final = "/checkpoints/{name:path}/permissions"
_Name = Annotated[str, Path(max_length=1000)]
_PROBLEMS: Final[dict[int | str, dict[str, Any]]] = problems(400, 401, 422, 503)


class NotOfferedError(DomainError):
    status, code, title = 400, "not_offered", "This service does not offer it"


def _no_graders() -> NoReturn:
    raise NotOfferedError(
        "Graders belong to reinforcement fine-tuning, which this service does not offer. The "
        "method `dpo` learns from pairs of answers, and `supervised` from good ones."
    )


def _no_permissions(checkpoint: str, permission: str | None = None) -> NoReturn:
    missing = "" if permission is None else f"There is no permission {permission[:100]!r}. "
    raise NotOfferedError(
        f"{missing}The checkpoint {checkpoint[:200]!r} belongs to the project of its job, and no "
        "other project can be given it: download it, or publish it to the Hub."
    )


@router.post(
    "/alpha/graders/validate",
    summary="Graders are not offered",
    dependencies=[NEEDS_JOBS_READ],
    responses=_PROBLEMS,
)
def validate_grader() -> None:
    """Always 400: reinforcement fine-tuning is not offered."""
    _no_graders()


@router.post(
    "/alpha/graders/run",
    summary="Graders are not offered",
    dependencies=[NEEDS_JOBS_READ],
    responses=_PROBLEMS,
)
def check_with_grader() -> None:
    """Always 400: reinforcement fine-tuning is not offered."""
    _no_graders()


@router.get(
    _PERMISSIONS,
    summary="Permissions of checkpoints are not offered",
    dependencies=[NEEDS_JOBS_READ],
    responses=_PROBLEMS,
)
def list_checkpoint_permissions(name: _Name) -> None:
    """Always 400: only the project of its job has a checkpoint."""
    _no_permissions(name)


@router.post(
    _PERMISSIONS,
    summary="Permissions of checkpoints are not offered",
    dependencies=[NEEDS_JOBS_WRITE],
    responses=_PROBLEMS,
)
def create_checkpoint_permission(name: _Name) -> None:
    """Always 400: only the project of its job has a checkpoint."""
    _no_permissions(name)


@router.delete(
    _PERMISSIONS + "/{permission_id}",
    summary="Permissions of checkpoints are not offered",
    dependencies=[NEEDS_JOBS_WRITE],
    responses=_PROBLEMS,
)
def delete_checkpoint_permission(name: _Name, permission_id: _Name) -> None:
    """Always 400: only the project of its job has a checkpoint."""
    _no_permissions(name, permission_id)
