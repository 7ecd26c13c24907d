"""What a user can do to a job."""

import json
from dataclasses import dataclass
from hashlib import sha256

import structlog
from sqlalchemy.exc import SQLAlchemyError

from service.contract.routing import CPU_QUEUE
from service.contract.spec import JobSpec
from service.contract.states import ENDED, JobState
from service.errors import JobEndedError, JobNotFoundError
from service.jobs.dispatch import Dispatcher
from service.store import idempotency, jobs
from service.store.database import Database

log = structlog.get_logger(__name__)

# Between the API's send and the reconciler's first: long enough for a free worker to claim.
FIRST_REPUBLISH_SECONDS = 30.0


@dataclass(frozen=True)
class Submitted:
    job_id: str
    created: bool
    """False when an earlier request with the same idempotency key made the job."""


def submit(
    database: Database,
    dispatcher: Dispatcher,
    spec: JobSpec,
    *,
    idempotency_key: str | None = None,
    request_sha256: str | None = None,
) -> Submitted:
    """Make a job and ring for it; without `request_sha256` the spec itself is compared.

    Raises IdempotencyKeyReusedError and IdempotencyInFlightError.
    """
    digest = request_sha256 or _digest(spec)
    job_id = jobs.new_job_id()
    with database.write() as session:
        if idempotency_key is not None:
            earlier = idempotency.earlier_job(session, idempotency_key, digest)
            if earlier is not None:
                return Submitted(earlier, created=False)
        message = jobs.insert(session, job_id, spec)
        if idempotency_key is not None:
            idempotency.remember(session, idempotency_key, digest, job_id)
    if dispatcher.wake(message.job_id, message.queue, message.priority):
        _mark_sent(database, job_id)
    else:
        log.warning("the broker is away; the reconciler will send the job", job_id=job_id)
    return Submitted(job_id, created=True)


def cancel(database: Database, dispatcher: Dispatcher, job_id: str) -> JobState:
    """Cancel at once, or have the supervisor stop the stage; the state the job is in now.

    Raises JobNotFoundError, and JobEndedError when there is nothing left to cancel. Asking again
    while the job is being cancelled changes nothing.
    """
    with database.write() as session:
        row = jobs.lock(session, job_id)
        if row is None:
            raise JobNotFoundError(f"There is no job {job_id!r}.")
        if JobState(row.state) in ENDED:
            raise JobEndedError(f"The job has already ended: {row.state}.", state=row.state)
        state, priority = jobs.cancel(session, row), row.priority
    if state is JobState.CANCELLED:
        # A run in MLflow, if the job has one already, is to end with it.
        dispatcher.wake(job_id, CPU_QUEUE, priority)
    return state


def _mark_sent(database: Database, job_id: str) -> None:
    """The job exists and is on its way: a fault here only means one message too many."""
    try:
        with database.write() as session:
            jobs.mark_sent(session, [job_id], FIRST_REPUBLISH_SECONDS)
    except SQLAlchemyError as error:
        log.warning("could not note that the message was sent", job_id=job_id, error=str(error))


def _digest(spec: JobSpec) -> str:
    return sha256(json.dumps(spec.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()
