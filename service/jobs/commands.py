"""What a user can do to a job."""

import structlog
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from service.contract import follow_up
from service.contract.follow_up import Promote, Publish
from service.contract.routing import CPU_QUEUE, Message
from service.contract.spec.hub import HubSpec
from service.contract.spec.spec import SPEC_VERSION, JobSpec
from service.contract.states import ACTIONS, ENDED, Action, JobState, Stage
from service.errors import (
    ArtifactGoneError,
    CheckpointGoneError,
    JobEndedError,
    JobNotFoundError,
    WrongStateError,
)
from service.jobs import removal, stage_outputs
from service.jobs.dispatch import Dispatcher
from service.jobs.submissions import uploads
from service.settings import Settings
from service.store.database import Database
from service.store.files import files, retention
from service.store.jobs import follow_ups, lineage, messages, queries, user_actions
from service.store.jobs import state as jobs
from service.store.projects import quotas
from service.store.scope import Scope
from service.store.tables.jobs import JobRow

log = structlog.get_logger(__name__)


def cancel(database: Database, dispatcher: Dispatcher, scope: Scope, job_id: str) -> JobState:
    """Cancel at once, or have the supervisor stop the stage. Returns the job's new state.

    Raises JobNotFoundError, and JobEndedError when there is nothing left to cancel. Asking again
    while the job is being cancelled changes nothing.
    """
    with database.write() as session:
        row = _living(session, scope, job_id)
        state, message = user_actions.cancel(session, row), messages.message(row, CPU_QUEUE)
    if state is JobState.CANCELLED:
        # If the job has a run in MLflow already, a worker ends it too.
        dispatcher.enqueue(message)
    return state


def pause(database: Database, scope: Scope, job_id: str) -> JobState:
    """Pause at once, or have the supervisor stop the stage at a checkpoint. Returns the state.

    Raises JobNotFoundError, JobEndedError, and WrongStateError while the job is being cancelled.
    """
    with database.write() as session:
        return user_actions.pause(session, _not_cancelling(session, scope, job_id))


def resume(database: Database, dispatcher: Dispatcher, scope: Scope, job_id: str) -> JobState:
    """Queue a paused job, or withdraw a pause that has not happened yet. Returns the state.

    Raises JobNotFoundError, JobEndedError, and WrongStateError while the job is being cancelled.
    """
    with database.write() as session:
        row = _not_cancelling(session, scope, job_id)
        was, state = row.state, user_actions.resume(session, row)
        message = messages.message(row)
    if was == JobState.PAUSED:
        _enqueue(database, dispatcher, message)
    return state


def retry(
    database: Database, dispatcher: Dispatcher, settings: Settings, scope: Scope, job_id: str
) -> JobState:
    """Queue a failed or cancelled job at the stage that failed, its checkpoints kept.

    If what that stage needs was removed, it begins at the earlier stage that makes it
    (service/jobs/stage_outputs.py). Raises JobNotFoundError, WrongStateError for any other state,
    and DataGoneError or SourceJobError when it has to be prepared again and an uploaded file, or
    the model of the job that it begins with, was removed.
    """
    with database.write() as session:
        retention.lock_products(session)
        row = _locked(session, scope, job_id)
        _require(row, Action.RETRY, "Only a failed or cancelled job can be retried")
        if row.spec_version > SPEC_VERSION:
            raise WrongStateError("A newer version of the service made the job.", state=row.state)
        _require_files_of_follow_up(session, row)
        stage, missing = _first_stage(session, row, Stage(row.stage), settings)
        quotas.require_queue_room(session, [row.project_id])
        state = user_actions.retry(session, row, stage, missing)
        message = messages.message(row)
    _enqueue(database, dispatcher, message)
    return state


def promote(
    database: Database,
    dispatcher: Dispatcher,
    settings: Settings,
    scope: Scope,
    job_id: str,
    step: int,
) -> JobState:
    """Make a checkpoint the model of an ended job, and publish it. Returns the state.

    Asking again while it does so, or when it has done so, changes nothing. Raises JobNotFoundError,
    CheckpointNotFoundError, CheckpointGoneError, WrongStateError, and as `retry` where the job has
    to be prepared again.
    """
    wanted = Promote(step=step)
    with database.write() as session:
        retention.lock_products(session)
        row = _locked(session, scope, job_id)
        _require_checkpoint(session, scope, job_id, step)
        published = row.results.get(Stage.TRAIN, {}).get("model_step") == step
        if row.state == JobState.SUCCEEDED and published:
            return JobState(row.state)
        if not _may_follow(row, wanted):
            return JobState(row.state)
        message = _follow_up(session, row, wanted, settings)
    _enqueue(database, dispatcher, message)
    return JobState.QUEUED


def publish(
    database: Database,
    dispatcher: Dispatcher,
    settings: Settings,
    scope: Scope,
    job_id: str,
    hub: HubSpec,
) -> JobState:
    """Have an ended job push its finished model to `hub`. Returns the state.

    Asking again while it does so changes nothing. Raises JobNotFoundError, WrongStateError, and
    ArtifactGoneError when the model was removed.
    """
    with database.write() as session:
        message = begin_publish(session, settings, scope, job_id, hub)
        if message is None:
            return JobState(_locked(session, scope, job_id).state)
    _enqueue(database, dispatcher, message)
    return JobState.QUEUED


def begin_publish(
    session: Session, settings: Settings, scope: Scope, job_id: str, hub: HubSpec
) -> Message | None:
    """As `publish`, in a transaction of the caller's, who sends the message; None when the job is
    doing it already."""
    wanted = Publish(hub=hub)
    retention.lock_products(session)
    row = _locked(session, scope, job_id)
    if not _may_follow(row, wanted):
        return None
    if not row.results.get(Stage.TRAIN, {}).get("output_dir"):
        raise WrongStateError("The job has no finished model.", state=row.state)
    if not stage_outputs.model_is_there(row, settings):
        raise ArtifactGoneError(
            "The job's finished model was removed to make room: clone the job to make it again."
        )
    return _follow_up(session, row, wanted, settings)


def _may_follow(row: JobRow, wanted: Promote | Publish) -> bool:
    """False when the job is doing it already. Raises WrongStateError."""
    if JobState(row.state) not in ENDED and row.follow_up == wanted.model_dump(mode="json"):
        return False
    _require(row, wanted.action, f"Only an ended job can be asked to {wanted.action}")
    return True


def _follow_up(
    session: Session, row: JobRow, wanted: Promote | Publish, settings: Settings
) -> Message:
    if row.spec_version > SPEC_VERSION:
        raise WrongStateError("A newer version of the service made the job.", state=row.state)
    stage, missing = _first_stage(session, row, wanted.stage, settings)
    quotas.require_queue_room(session, [row.project_id])
    follow_ups.begin(session, row, wanted, stage, missing)
    return messages.message(row)


def _first_stage(
    session: Session, row: JobRow, stage: Stage, settings: Settings
) -> tuple[Stage, list[str]]:
    """Where to begin so that `stage` has what it needs; what is missing. Data that `prepare` needs
    again is there then: DataGoneError, SourceJobError."""
    scope = Scope(row.project_id)
    lost = lineage.hold(session, scope, row.id)
    stage, missing = stage_outputs.first_stage(row, stage, settings, lost)
    if stage is Stage.PREPARE:
        spec = JobSpec.accepted(row.spec)
        lineage.use(session, scope, spec)
        files.use(session, scope, uploads(spec))
    return stage, missing


def _require_files_of_follow_up(session: Session, row: JobRow) -> None:
    """A follow-up uses the job's earlier results and does not repeat the stages that made them."""
    wanted = follow_up.parsed(row.follow_up)
    if isinstance(wanted, Promote):
        _require_checkpoint(session, Scope(row.project_id), row.id, wanted.step)
    elif wanted is not None and row.workspace_pruned_at is not None:
        raise ArtifactGoneError(
            "The job's finished model was removed to make room: clone the job to make it again."
        )


def _require_checkpoint(session: Session, scope: Scope, job_id: str, step: int) -> None:
    """Raises CheckpointNotFoundError or CheckpointGoneError."""
    if queries.checkpoint(session, scope, job_id, step).pruned_at is not None:
        raise CheckpointGoneError(
            f"The checkpoint of step {step} was removed to make room: see "
            f"GET /v1/jobs/{job_id}/checkpoints for those that are left.",
            step=step,
        )


def delete(database: Database, settings: Settings, scope: Scope, job_id: str) -> None:
    """Delete an ended job, its folder and the files of its run in MLflow; its repository on the Hub
    stays.

    Raises JobNotFoundError, WrongStateError for a job that has not ended, and JobInUseError while
    one that has not ended begins with its model.
    """
    with database.write() as session:
        row = _locked(session, scope, job_id)
        _require(row, Action.DELETE, "Only an ended job can be deleted, so cancel it first")
        lineage.require_unused(session, scope, job_id)
        folder = user_actions.remove(session, row)
    removal.remove_paths(database, settings.home, [folder])


def delete_model(database: Database, settings: Settings, scope: Scope, job_id: str) -> None:
    """Remove the files of an ended job, its model and checkpoints; the job and its log stay.

    Raises JobNotFoundError, WrongStateError for a job that has not ended, and JobInUseError while
    one that has not ended begins with its model. Asking again changes nothing.
    """
    with database.write() as session:
        row = _locked(session, scope, job_id)
        _require(row, Action.DELETE, "Only the model of an ended job can be deleted")
        lineage.require_unused(session, scope, job_id)
        ended = retention.EndedJob(row.id, row.ended_at or row.updated_at)
        folders = retention.prune_workspace(session, ended)
    removal.remove_paths(database, settings.home, folders)


def _locked(session: Session, scope: Scope, job_id: str) -> JobRow:
    row = jobs.lock(session, scope, job_id)
    if row is None:
        raise JobNotFoundError(job_id)
    return row


def _living(session: Session, scope: Scope, job_id: str) -> JobRow:
    row = _locked(session, scope, job_id)
    if JobState(row.state) in ENDED:
        raise JobEndedError(f"The job has already ended: {row.state}.", state=row.state)
    return row


def _not_cancelling(session: Session, scope: Scope, job_id: str) -> JobRow:
    row = _living(session, scope, job_id)
    if row.state == JobState.CANCELLING:
        raise WrongStateError("The job is being cancelled.", state=row.state)
    return row


def _require(row: JobRow, action: Action, rule: str) -> None:
    if action not in ACTIONS[JobState(row.state)]:
        raise WrongStateError(f"{rule}; this one is {row.state}.", state=row.state)


def _enqueue(database: Database, dispatcher: Dispatcher, message: Message) -> None:
    if not dispatcher.enqueue(message):
        log.warning("broker.unreachable", kind=message.kind, id=message.id)
        return
    try:
        with database.write(audited=False) as session:
            messages.mark_sent(session, [message.id], dispatcher.republish_seconds)
    except SQLAlchemyError as error:
        # The message is sent: the job only gets a second one.
        log.warning("message.sent_mark_failed", job_id=message.id, error=str(error))
