"""What a user can do to a job: each takes the locked row and returns the new state."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import delete
from sqlalchemy.orm import Session

from service.contract import next_steps
from service.contract.failures import Failure
from service.contract.states import STAGE_ORDER, JobState, Stage
from service.store import removals
from service.store.database import clock, db_now
from service.store.jobs import follow_ups
from service.store.jobs import state as jobs
from service.store.tables.jobs import ArtifactRow, JobRow
from service.store.tracking import removals as mlflow_removals


def cancel(session: Session, row: JobRow, reason: Failure = jobs.CANCELLED) -> JobState:
    """Cancel the job at once if no worker holds it, else ask its supervisor to stop.

    An ended or cancelling job stays as it is. `reason`: what its page says.
    """
    state = JobState(row.state)
    failure = next_steps.addressed(reason, row.id).model_dump(mode="json")
    if state in (JobState.QUEUED, JobState.PAUSED):
        jobs.move(
            session,
            row.id,
            state,
            JobState.CANCELLED,
            "cancelled",
            ended_at=db_now(),
            tracking_retry_at=db_now(jobs.TRACKING_GRACE_SECONDS),
            failure=failure,
        )
        return JobState.CANCELLED
    if state in (JobState.RUNNING, JobState.PAUSING):
        jobs.move(session, row.id, state, JobState.CANCELLING, "cancel_requested", failure=failure)
        return JobState.CANCELLING
    return state


def pause(session: Session, row: JobRow) -> JobState:
    """Pause the job at once when it waits, else ask its supervisor; all others stay as they are."""
    state = JobState(row.state)
    if state is JobState.QUEUED:
        jobs.move(session, row.id, state, JobState.PAUSED, "paused")
        return JobState.PAUSED
    if state is JobState.RUNNING:
        jobs.move(session, row.id, state, JobState.PAUSING, "pause_requested")
        return JobState.PAUSING
    return state


def resume(session: Session, row: JobRow) -> JobState:
    """Queue a paused job, or withdraw a pause that has not happened yet.

    A stage that was already asked to stop gives its job back to the queue (store/jobs/endings.py).
    All others stay as they are.
    """
    state = JobState(row.state)
    if state is JobState.PAUSED:
        now = clock(session)
        times: dict[str, Any] = {"queued_at": now, "not_before": now, "next_publish_at": now}
        jobs.move(session, row.id, state, JobState.QUEUED, "resume_requested", **times)
        return JobState.QUEUED
    if state is JobState.PAUSING:
        jobs.move(session, row.id, state, JobState.RUNNING, "resume_requested")
        return JobState.RUNNING
    return state


def retry(session: Session, row: JobRow, stage: Stage, missing: Sequence[str]) -> JobState:
    """Queue a failed or cancelled job at `stage`, as if nothing had been tried there yet.

    `missing` names what was removed if `stage` lies before the one that failed. What later stages
    made is forgotten, but not what `prepare` resolved: the job is prepared again the same. A
    follow-up (store/jobs/follow_ups.py) forgets nothing. Time limit and retries start again.
    """
    data = {"failed_stage": row.stage, "missing": list(missing)}
    if row.workspace_pruned_at is not None:
        session.execute(delete(ArtifactRow).where(ArtifactRow.job_id == row.id))
    is_follow_up = row.follow_up is not None
    keeps_progress = is_follow_up or stage is Stage.PUBLISH
    values = follow_ups.again(session, row, stage, keeps_progress=keeps_progress)
    if not is_follow_up:
        kept = {Stage.PREPARE, *STAGE_ORDER[: STAGE_ORDER.index(stage)]}
        values["results"] = {name: each for name, each in row.results.items() if name in kept}
    jobs.move(session, row.id, JobState(row.state), JobState.QUEUED, "retried", data=data, **values)
    return JobState.QUEUED


def remove(session: Session, row: JobRow) -> str:
    """Delete the row with all that refers to it; the folder to remove, relative to the home.

    The caller makes sure that the job has ended.
    """
    folder = removals.workspace(row.id)
    removals.schedule(session, [folder])
    mlflow_removals.schedule(session, row.mlflow_run_id, is_final=row.tracking_final)
    session.delete(row)
    session.flush()
    return folder
