"""The checkpoint of another job that a training continues from."""

from sqlalchemy.orm import Session

from service.contract.failures import FailureCode, StageError
from service.contract.spec import JobSpec
from service.contract.stages import PrepareResult, ResumeSource
from service.errors import SourceJobError
from service.settings import Settings
from service.store import lineage
from service.store.scope import Scope


def resolve(
    session: Session,
    scope: Scope,
    settings: Settings,
    spec: JobSpec,
    prepared: PrepareResult | None,
) -> ResumeSource | None:
    """Look up `training.resume_from`: the checkpoint that an earlier `prepare` chose if it still
    exists, else the one the other job has now; None if the option is not given. Raises
    StageError(checkpoint_unreadable)."""
    wanted = spec.training.resume_from
    if wanted is None:
        return None
    earlier = prepared.resume_source if prepared is not None else None
    if earlier is not None and earlier.folder.is_dir():
        return earlier
    try:
        source = lineage.checkpoint_of(session, scope, wanted.job, wanted.checkpoint)
        made = PrepareResult.of_results(source.job.results, settings.home)
    except SourceJobError as error:
        code = FailureCode.CHECKPOINT_UNREADABLE
        raise StageError(code, error.detail, reason=error.extra["reason"]) from error
    assert made is not None, "it was trained"
    assert source.step is not None, "it is a checkpoint"
    return ResumeSource(
        job=wanted.job,
        step=source.step,
        folder=settings.workspace(wanted.job) / source.path,
        sha256=source.sha256,
        data_fingerprint=made.data_fingerprint,
        model_revision=made.model_revision,
    )
