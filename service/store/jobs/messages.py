"""The outbox of jobs: the messages that wake a worker for each."""

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from service.contract.routing import Message, MessageKind
from service.contract.states import JobState
from service.store.database import db_now
from service.store.tables.jobs import JobRow


def message(job: JobRow, queue: str | None = None) -> Message:
    """Without `queue`, for a worker of the job's own."""
    return Message(MessageKind.JOB, job.id, queue or job.queue, job.priority)


def due(session: Session, limit: int) -> list[Message]:
    """Queued jobs whose message is due (again), in the order they should start."""
    now = db_now()
    query = (
        select(JobRow.id, JobRow.queue, JobRow.priority)
        .where(
            JobRow.state == JobState.QUEUED, JobRow.next_publish_at <= now, JobRow.not_before <= now
        )
        .order_by(JobRow.priority, JobRow.queued_at, JobRow.id)
        .limit(limit)
    )
    return [Message(MessageKind.JOB, *row) for row in session.execute(query)]


def waits_in(session: Session, job_id: str) -> str | None:
    """The queue of a job that waits; None for any other."""
    query = select(JobRow.queue).where(JobRow.id == job_id, JobRow.state == JobState.QUEUED)
    return session.scalar(query)


def message_if_due(session: Session, job_id: str) -> Message | None:
    """The message for this job, if a worker may have it now."""
    query = select(JobRow.id, JobRow.queue, JobRow.priority).where(
        JobRow.id == job_id, JobRow.state == JobState.QUEUED, JobRow.not_before <= db_now()
    )
    found = session.execute(query).one_or_none()
    return None if found is None else Message(MessageKind.JOB, *found)


def mark_sent(session: Session, job_ids: list[str], again_in: float) -> None:
    """Messages that the broker accepted are sent again after `again_in` s if no worker claims."""
    session.execute(
        update(JobRow)
        .where(JobRow.id.in_(job_ids), JobRow.state == JobState.QUEUED)
        .values(next_publish_at=db_now(again_in)),
        execution_options={"synchronize_session": False},
    )


def send_all_again(session: Session) -> int:
    """Make the message of every queued job due, because all that were sent are lost; how many."""
    sent = update(JobRow).where(JobRow.state == JobState.QUEUED, JobRow.next_publish_at > db_now())
    found = session.execute(
        sent.values(next_publish_at=db_now()).returning(JobRow.id),
        execution_options={"synchronize_session": False},
    )
    return len(found.all())
