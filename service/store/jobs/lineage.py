"""Jobs that begin with the model or checkpoint of another: the look-up, and which job needs
which."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.contract.spec.spec import JobSpec
from service.contract.states import ENDED, LIVE, JobState, Stage
from service.errors import JobInUseError, SourceJobError
from service.store.database import clock
from service.store.jobs import state
from service.store.scope import Scope
from service.store.tables.jobs import CheckpointRow, JobRow, JobSourceRow

MOST_SHOWN: Final = 100


@dataclass(frozen=True)
class Source:
    """A finished model, or one of the job's checkpoints."""

    job: JobRow
    step: int | None
    """Of the checkpoint; None for the finished model."""
    path: str
    """Relative to the job's workspace."""
    sha256: str


# ---- what there is ------------------------------------------------------------------------------


def model_of(session: Session, scope: Scope, job_id: str, checkpoint: str | int | None) -> Source:
    """The finished model of a job, or the model of one of its checkpoints. SourceJobError."""
    source = predicted_model(session, scope, job_id, checkpoint)
    peft = JobSpec.accepted(source.job.spec).peft
    if peft is not None and (checkpoint is not None or not peft.merges):
        what = "finished model" if checkpoint is None else "checkpoint"
        _refuse(
            "adapter_only",
            f"the {what} of job {job_id} is an adapter without its base model: train it with "
            "`peft.merge: true` and leave `model.checkpoint` out",
        )
    return source


def predicted_model(
    session: Session, scope: Scope, job_id: str, checkpoint: str | int | None
) -> Source:
    """As `model_of`, but it may also be an adapter. SourceJobError."""
    row = _finished_job(session, scope, job_id)
    spec = JobSpec.accepted(row.spec)
    if not spec.trains:
        made_no_model = f"job {job_id} made no model: its `mode` is `{spec.mode}`"
        _refuse("no_model", f"{made_no_model}. Give the job that trained the one it used")
    if checkpoint is not None:
        return _checkpoint(session, row, checkpoint)
    trained = row.results.get(Stage.TRAIN)
    if trained is None:
        _refuse(
            "no_model",
            f"job {job_id} has no finished model: it is {row.state}, but its checkpoints can be "
            "used (`model.checkpoint: last`)",
        )
    return Source(row, None, trained["output_dir"], trained.get("weights_sha256", ""))


def checkpoint_of(session: Session, scope: Scope, job_id: str, checkpoint: str | int) -> Source:
    """A checkpoint to continue the training of a job from. SourceJobError."""
    row = _finished_job(session, scope, job_id)
    mode = JobSpec.accepted(row.spec).mode
    if mode != "train":
        _refuse("no_model", f"job {job_id} has no training to continue: its `mode` is `{mode}`")
    return _checkpoint(session, row, checkpoint)


def spec_of(session: Session, scope: Scope, job_id: str) -> JobSpec | None:
    row = _job(session, scope, job_id)
    return JobSpec.accepted(row.spec) if row is not None else None


def _job(session: Session, scope: Scope, job_id: str) -> JobRow | None:
    row = session.get(JobRow, job_id)
    return row if row is not None and scope.has(row.project_id) else None


def _finished_job(session: Session, scope: Scope, job_id: str) -> JobRow:
    row = _job(session, scope, job_id)
    if row is None:
        _refuse("unknown_job", f"there is no job {job_id}")
    if JobState(row.state) not in ENDED and Stage.TRAIN not in row.results:
        _refuse(
            "job_not_ended",
            f"job {job_id} is {row.state} and has no model yet: wait until it has ended",
        )
    if row.workspace_pruned_at is not None:
        _refuse(
            "model_gone",
            f"the files of job {job_id} were removed on {row.workspace_pruned_at:%Y-%m-%d} to make "
            "room: clone it to train the model again, or give the place where it was published as "
            "`model.name_or_path`",
        )
    return row


def _checkpoint(session: Session, row: JobRow, wanted: str | int) -> Source:
    query = select(CheckpointRow).where(CheckpointRow.job_id == row.id)
    if wanted == "best":
        query = query.where(CheckpointRow.best)
    elif wanted != "last":
        query = query.where(CheckpointRow.step == wanted)
    found = list(session.scalars(query.order_by(CheckpointRow.step.desc())))
    kept = [each for each in found if each.pruned_at is None]
    if not kept:
        _refuse(*_why_no_checkpoint(row.id, wanted, pruned=bool(found)))
    chosen = kept[0]
    return Source(row, chosen.step, chosen.path, chosen.manifest_sha256)


def _why_no_checkpoint(job_id: str, wanted: str | int, *, pruned: bool) -> tuple[str, str]:
    if pruned and wanted != "last":
        return "checkpoint_gone", (
            f"the checkpoint {wanted} of job {job_id} was removed to make room: choose one of "
            f"GET /v1/jobs/{job_id}/checkpoints"
        )
    name = f"checkpoint of step {wanted}" if isinstance(wanted, int) else f"{wanted} checkpoint"
    message = f"job {job_id} has no {name}: see GET /v1/jobs/{job_id}/checkpoints"
    return "unknown_checkpoint", message


def _refuse(reason: str, detail: str) -> NoReturn:
    raise SourceJobError(detail, reason=reason)


def public_name(source: Source, *, whole: bool) -> tuple[str, str | None]:
    """What a model card calls this model, and its commit where the name identifies these weights.

    The repository that it was pushed to. Else the model that all began with, but for an adapter
    (not `whole`), which works with nothing but the very weights. Of an absolute path only the last
    part is meant.
    """
    row = source.job
    published = row.results.get(Stage.PUBLISH) or {}
    if source.step is None and published.get("hub_url"):
        url = published["hub_url"].partition("/tree/")[0].rstrip("/")
        return "/".join(url.split("/")[-2:]), published.get("hub_commit")
    if not whole:
        return f"/{row.id}", None
    earlier = (row.results.get(Stage.PREPARE) or {}).get("base_job") or {}
    return earlier.get("name") or row.spec["model"].get("name_or_path") or f"/{row.id}", None


# ---- who needs whom -----------------------------------------------------------------------------


def sources(spec: JobSpec) -> list[str]:
    """Ids of the jobs that this one begins with."""
    resumed = spec.training.resume_from
    found = {spec.model.job, resumed.job if resumed is not None else None}
    return sorted(job_id for job_id in found if job_id is not None)


def use(session: Session, scope: Scope, spec: JobSpec) -> None:
    """Require what the job begins with, and hold its sources until the transaction ends.

    After it the job protects them, if it is noted with `note` or noted already. SourceJobError.
    """
    for source_id in sources(spec):
        state.lock(session, scope, source_id)
    if spec.model.job is not None:
        model_of(session, scope, spec.model.job, spec.model.checkpoint)
    resumed = spec.training.resume_from
    if resumed is not None:
        checkpoint_of(session, scope, resumed.job, resumed.checkpoint)


def note(session: Session, new: Iterable[tuple[str, JobSpec]]) -> None:
    """Write which jobs it begins with, and an event in the history of each. They are locked."""
    for job_id, spec in new:
        for source_id in sources(spec):
            session.add(JobSourceRow(job_id=job_id, source_id=source_id))
            source = session.get_one(JobRow, source_id)
            at = clock(session)
            state.append_event(session, source, "derived", {"job": job_id}, at)
    session.flush()


def hold(session: Session, scope: Scope, job_id: str) -> set[str]:
    """Lock the sources of a job until the transaction ends; those whose files are lost."""
    query = select(JobSourceRow.source_id).where(
        JobSourceRow.job_id == job_id, scope.filter_by_job(JobSourceRow.job_id)
    )
    lost = set()
    for source_id in sorted(session.scalars(query)):
        row = state.lock(session, scope, source_id)
        if row is None or row.workspace_pruned_at is not None:
            lost.add(source_id)
    return lost


def derived(session: Session, scope: Scope, job_id: str, *, only_live: bool = False) -> list[str]:
    """Ids of jobs that began with this one, the oldest first; MOST_SHOWN at most."""
    query: Any = select(JobSourceRow.job_id).where(
        JobSourceRow.source_id == job_id, scope.filter_by_job(JobSourceRow.job_id)
    )
    if only_live:
        query = query.join(JobRow, JobRow.id == JobSourceRow.job_id)
        query = query.where(JobRow.state.in_(LIVE))
    return list(session.scalars(query.order_by(JobSourceRow.job_id).limit(MOST_SHOWN)))


def require_unused(session: Session, scope: Scope, job_id: str) -> None:
    """JobInUseError while a job that has not ended begins with this one, which is locked."""
    needed_by = derived(session, scope, job_id, only_live=True)
    if needed_by:
        raise JobInUseError(
            f"Jobs that have not ended begin with what {job_id} made: {', '.join(needed_by)}. "
            "Cancel them or wait.",
            jobs=needed_by,
        )
