"""What a job takes from another one: its model, or the checkpoint that it continues from."""

from sqlalchemy.orm import Session

from service.contract.failures import FailureCode, StageError
from service.contract.spec.spec import JobSpec
from service.contract.stage.stages import BaseJob, PrepareResult, ResumeSource
from service.contract.states import Stage
from service.errors import SourceJobError
from service.settings import Settings
from service.store.jobs import lineage
from service.store.scope import Scope


def resolve(session: Session, scope: Scope, settings: Settings, spec: JobSpec) -> BaseJob | None:
    """Look up `model.job`; None if it is not given. Raises StageError(model_not_found)."""
    if spec.model.job is None:
        return None
    whole = spec.peft is None or spec.peft.merges
    try:
        source = lineage.model_of(session, scope, spec.model.job, spec.model.checkpoint)
        name, revision = lineage.public_name(source, whole=whole)
        trained = source.job.results.get(Stage.TRAIN)
    except SourceJobError as error:
        code = FailureCode.MODEL_NOT_FOUND
        raise StageError(code, error.detail, reason=error.extra["reason"]) from error
    workspace = settings.workspace(spec.model.job)
    return BaseJob(
        job=spec.model.job,
        step=source.step,
        folder=workspace / source.path,
        finished=workspace / trained["output_dir"] if trained else None,
        sha256=source.sha256,
        name=name,
        revision=revision,
    )


def named(spec: JobSpec, prepared: PrepareResult | None) -> JobSpec:
    """The spec for the stages after `prepare`, with a base model name that a card or an adapter may
    show; those stages find its files in the result of `prepare`."""
    if prepared is None or prepared.base_job is None:
        return spec
    changes = {"job": None, "checkpoint": None, "name_or_path": prepared.base_job.name}
    return spec.model_copy(update={"model": spec.model.model_copy(update=changes)})


def resume_source(
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
