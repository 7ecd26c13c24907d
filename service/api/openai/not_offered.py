"""What OpenAI's clients can ask for and this service does not offer, with the reason."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Path

from service.api.http.principal import NEEDS_JOBS_READ, NEEDS_JOBS_WRITE
from service.api.openapi.document import problems
from service.errors import DomainError

router = APIRouter(prefix="/v1/fine_tuning", tags=["openai"])

_PERMISSIONS: Final = "/checkpoints/{name:path}/permissions"
_Name = Annotated[str, Path(max_length=1000)]
_PROBLEMS: Final[dict[int | str, dict[str, Any]]] = problems(400, 401, 422, 503)


class NotOfferedError(DomainError):
    status, code, title = 400, "not_offered", "This service does not offer it"


_GRADERS: Final[dict[str, Any]] = {
    "summary": "Graders are not offered",
    "dependencies": [NEEDS_JOBS_READ],
    "responses": _PROBLEMS,
}


@router.post("/alpha/graders/validate", name="validate_grader", **_GRADERS)
@router.post("/alpha/graders/run", name="check_with_grader", **_GRADERS)
def no_graders() -> None:
    """Always 400: reinforcement fine-tuning is not offered."""
    raise NotOfferedError(
        "Graders belong to reinforcement fine-tuning, which this service does not offer. The "
        "method `dpo` learns from pairs of answers, and `supervised` from good ones."
    )


_OF_CHECKPOINTS: Final[dict[str, Any]] = {
    "summary": "Permissions of checkpoints are not offered",
    "responses": _PROBLEMS,
}


@router.get(
    _PERMISSIONS,
    name="list_checkpoint_permissions",
    dependencies=[NEEDS_JOBS_READ],
    **_OF_CHECKPOINTS,
)
@router.post(
    _PERMISSIONS,
    name="create_checkpoint_permission",
    dependencies=[NEEDS_JOBS_WRITE],
    **_OF_CHECKPOINTS,
)
def no_permissions(name: _Name) -> None:
    """Always 400: only the project of its job has a checkpoint."""
    raise _no_permissions(name)


@router.delete(
    _PERMISSIONS + "/{permission_id}", dependencies=[NEEDS_JOBS_WRITE], **_OF_CHECKPOINTS
)
def delete_checkpoint_permission(name: _Name, permission_id: _Name) -> None:
    """Always 400: only the project of its job has a checkpoint."""
    raise _no_permissions(name, f"There is no permission {permission_id[:100]!r}. ")


def _no_permissions(checkpoint: str, missing: str = "") -> NotOfferedError:
    return NotOfferedError(
        f"{missing}The checkpoint {checkpoint[:200]!r} belongs to the project of its job, and no "
        "other project can be given it: download it, or publish it to the Hub."
    )
