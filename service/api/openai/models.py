"""Models in the shapes of OpenAI's API: those that jobs of the project have made."""

from typing import Annotated, Final

from fastapi import APIRouter, Path

from service.api.faults.redaction import cut
from service.api.http.dependencies import DatabaseDep, SettingsDep
from service.api.http.principal import JobsRead, JobsWrite
from service.api.openai.job_objects import has_model, unix
from service.api.openai.model_titles import ModelTitles
from service.api.openai.schemas.fine_tuning import Model, ModelDeleted, ModelPage
from service.api.openapi.document import problems
from service.api.problems.errors import InvalidRequestError
from service.api.schemas.problems import Fault
from service.contract.spec import model_names
from service.contract.spec.model_names import FineTuned
from service.contract.states import JobState
from service.errors import DomainError, JobNotFoundError
from service.jobs import commands
from service.jobs.disk_space import with_reserve
from service.store.database import Database
from service.store.jobs import listing, queries
from service.store.scope import Scope
from service.store.tables.jobs import JobRow

router = APIRouter(prefix="/v1/models", tags=["openai"])

MOST_LISTED: Final = 1000
"""The newest; OpenAI's list has no pages."""
_PAGE: Final = 100
ModelName = Annotated[
    str,
    Path(
        description="`ft:<base>:<project>:<suffix>:<job id>`, of a checkpoint with "
        "`:ckpt-step-<step>`.",
        examples=["ft:SmolLM2-135M:default:support:job-0199a0b1c2d37e4f85a6b7c8d9e0f1a2"],
    ),
]


class ModelNotFoundError(DomainError):
    status, code, title = 404, "model_not_found", "Model not found"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"There is no fine-tuned model {cut(name)!r}. Base models are not listed: name a Hub "
            "id or an allowed path as `model` of a job, which then checks it."
        )


@router.get("", summary="List the fine-tuned models", responses=problems(401, 422, 503))
def list_models(principal: JobsRead, database: DatabaseDep) -> ModelPage:
    """The newest thousand, newest first. Base models and checkpoints are not listed."""
    wanted = listing.JobFilter(states=(JobState.SUCCEEDED,))
    found: list[Model] = []
    after, has_more = None, True
    while has_more and len(found) < MOST_LISTED:
        with database.read() as session:
            rows, has_more = listing.list_jobs(
                session, principal.scope, wanted, after=after, limit=_PAGE, has_specs=True
            )
            titles = ModelTitles(session, principal.scope, rows)
        found += [_of_job(row, titles) for row in rows if has_model(row)]
        after = rows[-1].id if rows else None
    return ModelPage(data=found[:MOST_LISTED])


def _of_job(job: JobRow, titles: ModelTitles) -> Model:
    return Model(
        id=titles.made_by(job.id),
        created=unix(job.ended_at or job.updated_at),
        owned_by=titles.project(job.project_id),
    )


@router.get("/{model:path}", summary="One fine-tuned model", responses=problems(401, 404, 422, 503))
def get_model_by_name(principal: JobsRead, model: ModelName, database: DatabaseDep) -> Model:
    """A finished model or a checkpoint. Only the job id and the step of the name decide."""
    named = _named(model)
    with database.read() as session:
        try:
            job = queries.get_job(session, principal.scope, named.job_id)
            titles = ModelTitles(session, principal.scope, [job])
        except JobNotFoundError:
            raise ModelNotFoundError(model) from None
        if named.step is None:
            if not has_model(job):
                raise ModelNotFoundError(model)
            return _of_job(job, titles)
        found, _ = queries.kept_checkpoints(
            session, principal.scope, job.id, before=named.step + 1, limit=1
        )
        if not found or found[0].step != named.step:
            raise ModelNotFoundError(model)
        return Model(
            id=titles.made_by(job.id, named.step),
            created=unix(found[0].created_at),
            owned_by=titles.project(job.project_id),
        )


def _named(model: str) -> FineTuned:
    """Raises ModelNotFoundError."""
    named = model_names.parse(model)
    if named is None:
        raise ModelNotFoundError(model)
    return named


@router.delete(
    "/{model:path}",
    summary="Delete a fine-tuned model",
    responses=problems(401, 404, 409, 422, 503),
)
def delete_model(
    principal: JobsWrite, model: ModelName, database: DatabaseDep, settings: SettingsDep
) -> ModelDeleted:
    """Removes the job's files, its checkpoints too. The job, its history and its log stay; its run
    in MLflow and its repository on the Hub as well.

    409 while a job that has not ended begins with the model.
    """
    named = _named(model)
    if named.step is not None:
        message = "a checkpoint is removed together with the job's model: delete that"
        fault = Fault(path="model", code="unsupported_option", message=message, given=cut(model))
        raise InvalidRequestError([fault])
    _require_model(database, principal.scope, named.job_id, model)
    with_reserve(
        settings, lambda: commands.delete_model(database, settings, principal.scope, named.job_id)
    )
    return ModelDeleted(id=model)


def _require_model(database: Database, scope: Scope, job_id: str, model: str) -> None:
    """Raises ModelNotFoundError."""
    with database.read() as session:
        try:
            job = queries.get_job(session, scope, job_id)
        except JobNotFoundError:
            raise ModelNotFoundError(model) from None
    if not has_model(job):
        raise ModelNotFoundError(model)
