"""What a user can do to a job."""

import json
from dataclasses import dataclass
from hashlib import sha256

import structlog
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from service.contract import splits
from service.contract.routing import CPU_QUEUE, queue_for
from service.contract.spec import SPEC_VERSION, JobSpec, UploadDataset
from service.contract.states import ACTIONS, ENDED, STAGE_ORDER, Action, JobState, Stage
from service.errors import JobEndedError, JobNotFoundError, WrongStateError
from service.jobs import products, removal
from service.jobs.dispatch import Dispatcher
from service.settings import Settings
from service.store import files, idempotency, jobs, queries, retention, wishes
from service.store.database import Database
from service.store.models import JobRow

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Submitted:
    job_id: str
    job: JobRow | None = None
    """None when an earlier request with the same idempotency key made it."""
    queue_position: int | None = None

    @property
    def created(self) -> bool:
        return self.job is not None


def submit(
    database: Database,
    dispatcher: Dispatcher,
    spec: JobSpec,
    *,
    idempotency_key: str | None = None,
    request_sha256: str | None = None,
    cloned_from: str | None = None,
) -> Submitted:
    """Make a job and ring for it; without `request_sha256` the spec itself is compared.

    Raises IdempotencyKeyReusedError, IdempotencyInFlightError, and DataGoneError when a file that
    the spec names does not exist.
    """
    # Only a key needs it, and it takes as long as a statement.
    digest = request_sha256 or (_digest(spec) if idempotency_key is not None else "")
    job_id = jobs.new_job_id()
    with database.write() as session:
        if idempotency_key is not None:
            earlier = idempotency.earlier_job(session, idempotency_key, digest)
            if earlier is not None:
                return Submitted(earlier)
        files.use(session, _uploads(spec))
        queue = queue_for(STAGE_ORDER[0], spec)
        now, position = queries.arrival(session, queue, spec.priority)
        row = jobs.insert(
            session, job_id, spec, now=now, cloned_from=cloned_from, due_in=dispatcher.head_start
        )
        if idempotency_key is not None:
            idempotency.remember(session, idempotency_key, digest, job_id)
    dispatcher.wake_soon(job_id, row.queue, row.priority)
    return Submitted(job_id, row, position)


def earlier_submission(database: Database, key: str, request_sha256: str) -> str | None:
    """The job that this key made with this request, before anything else of it is looked at.

    What was valid then may not be now: a file may have been deleted. Raises
    IdempotencyKeyReusedError.
    """
    with database.read() as session:
        return idempotency.job_of(session, key, request_sha256)


def cancel(database: Database, dispatcher: Dispatcher, job_id: str) -> JobState:
    """Cancel at once, or have the supervisor stop the stage; the state the job is in now.

    Raises JobNotFoundError, and JobEndedError when there is nothing left to cancel. Asking again
    while the job is being cancelled changes nothing.
    """
    with database.write() as session:
        row = _living(session, job_id)
        state, priority = wishes.cancel(session, row), row.priority
    if state is JobState.CANCELLED:
        # A run in MLflow, if the job has one already, is to end with it.
        dispatcher.wake(job_id, CPU_QUEUE, priority)
    return state


def pause(database: Database, job_id: str) -> JobState:
    """Pause at once, or have the supervisor stop the stage at a checkpoint; the state now.

    Raises JobNotFoundError, JobEndedError, and WrongStateError while the job is being cancelled.
    """
    with database.write() as session:
        return wishes.pause(session, _not_cancelling(session, job_id))


def resume(database: Database, dispatcher: Dispatcher, job_id: str) -> JobState:
    """Queue a paused job, or take a pause back that has not happened yet; the state now.

    Raises JobNotFoundError, JobEndedError, and WrongStateError while the job is being cancelled.
    """
    with database.write() as session:
        row = _not_cancelling(session, job_id)
        was, state = row.state, wishes.resume(session, row)
        message = jobs.Message(row.id, row.queue, row.priority)
    if was == JobState.PAUSED:
        _ring(database, dispatcher, message)
    return state


def retry(database: Database, dispatcher: Dispatcher, settings: Settings, job_id: str) -> JobState:
    """Queue a failed or cancelled job at the stage that failed, its checkpoints kept.

    When what that stage needs is gone it begins at the earlier stage that makes it
    (service/jobs/products.py). Raises JobNotFoundError, WrongStateError for any other state, and
    DataGoneError when it has to be prepared again and an uploaded file is gone.
    """
    with database.write() as session:
        retention.lock_products(session)
        row = _locked(session, job_id)
        _require(row, Action.RETRY, "Only a failed or cancelled job can be retried")
        if row.spec_version > SPEC_VERSION:
            raise WrongStateError("A newer version of the service made the job.", state=row.state)
        stage, missing = products.stage_to_retry(row, settings)
        if stage is Stage.PREPARE:
            files.use(session, _uploads(JobSpec.model_validate(row.spec)))
        state = wishes.retry(session, row, stage, missing)
        message = jobs.Message(row.id, row.queue, row.priority)
    _ring(database, dispatcher, message)
    return state


def delete(database: Database, settings: Settings, job_id: str) -> None:
    """Delete an ended job and its folder; its run in MLflow and its repository on the Hub stay.

    Raises JobNotFoundError, and WrongStateError for a job that has not ended.
    """
    with database.write() as session:
        row = _locked(session, job_id)
        _require(row, Action.DELETE, "Only an ended job can be deleted, so cancel it first")
        folder = wishes.remove(session, row)
    removal.carry_out(database, settings.home, [folder])


def _locked(session: Session, job_id: str) -> JobRow:
    row = jobs.lock(session, job_id)
    if row is None:
        raise JobNotFoundError(f"There is no job {job_id!r}.")
    return row


def _living(session: Session, job_id: str) -> JobRow:
    row = _locked(session, job_id)
    if JobState(row.state) in ENDED:
        raise JobEndedError(f"The job has already ended: {row.state}.", state=row.state)
    return row


def _not_cancelling(session: Session, job_id: str) -> JobRow:
    row = _living(session, job_id)
    if row.state == JobState.CANCELLING:
        raise WrongStateError("The job is being cancelled.", state=row.state)
    return row


def _require(row: JobRow, action: Action, rule: str) -> None:
    if action not in ACTIONS[JobState(row.state)]:
        raise WrongStateError(f"{rule}; this one is {row.state}.", state=row.state)


def _uploads(spec: JobSpec) -> list[str]:
    return splits.items(spec.dataset) if isinstance(spec.dataset, UploadDataset) else []


def _ring(database: Database, dispatcher: Dispatcher, message: jobs.Message) -> None:
    if dispatcher.wake(message.job_id, message.queue, message.priority):
        _mark_sent(database, message.job_id, dispatcher.republish_seconds)
    else:
        log.warning("the broker is away; the reconciler will send the job", job_id=message.job_id)


def _mark_sent(database: Database, job_id: str, again_in: float) -> None:
    """The job exists and is on its way: a fault here only means one message too many."""
    try:
        with database.write() as session:
            jobs.mark_sent(session, [job_id], again_in)
    except SQLAlchemyError as error:
        log.warning("could not note that the message was sent", job_id=job_id, error=str(error))


def _digest(spec: JobSpec) -> str:
    return sha256(json.dumps(spec.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()
