"""How an attempt ends, and what follows for its job: decided here, by the reason alone."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.contract import next_steps
from service.contract.failures import RULES, Failure, FailureCode
from service.contract.spec.spec import JobSpec
from service.contract.states import ENDED, HELD, JobState, Stage, next_stage
from service.store.database import clock, db_now, jsonable
from service.store.jobs import state, wait_reasons
from service.store.jobs.claims import held
from service.store.projects import usage
from service.store.scheduling import fair_shares
from service.store.scope import EVERYTHING
from service.store.tables.jobs import AttemptRow, JobRow

MAX_BACKOFF_SECONDS = 600.0
_FIRST_LACK_SECONDS = 5.0

Outcome = Literal["finished", "failed", "cancelled", "lost", "released"]


@dataclass(frozen=True)
class Policy:
    """The operator's numbers that decide what follows an ending."""

    crash_limit: int
    retry_backoff_seconds: float


@dataclass(frozen=True)
class Ending:
    outcome: Outcome
    result: dict[str, Any] | None = None
    """Of a finished stage, as JSON."""
    failure: Failure | None = None

    @classmethod
    def finished(cls, result: dict[str, Any]) -> "Ending":
        return cls("finished", result=result)

    @classmethod
    def failed(cls, failure: Failure) -> "Ending":
        return cls("failed", failure=failure)

    @classmethod
    def cancelled(cls) -> "Ending":
        return cls("cancelled", failure=state.CANCELLED)

    @classmethod
    def released(cls) -> "Ending":
        """The worker gives the job back; the job is not at fault."""
        return cls("released")


@dataclass(frozen=True)
class _Step:
    """What happens to the job's row next."""

    to: JobState
    event: str
    data: dict[str, Any]
    values: dict[str, Any]
    failure: Failure | None = None
    """The attempt's, with what to do now that it is known what follows."""


def end(
    session: Session, job_id: str, epoch: int, ending: Ending, policy: Policy
) -> JobState | None:
    """End the attempt and move the job on; its state now, or None when the epoch is stale."""
    row = held(session, job_id, epoch)
    if row is None:
        return None
    return _apply(session, row, ending, policy, clock(session))


def settled(session: Session, job_id: str, epoch: int) -> JobState | None:
    """The job's state if this attempt's end was written, for an end whose COMMIT got no answer.

    None when it was not written, or when the reconciler wrote that the attempt was lost. Waits for
    the row, as claims.is_committed.
    """
    state.lock(session, EVERYTHING, job_id)
    attempt = session.get(AttemptRow, (job_id, epoch))
    if attempt is None or attempt.outcome in (None, "lost"):
        return None
    return JobState(session.get_one(JobRow, job_id).state)


def expired(session: Session, limit: int) -> list[str]:
    """Jobs whose lease has run out: their worker has died or cannot reach the database."""
    query = select(JobRow.id).where(JobRow.lease_until < db_now()).limit(limit)
    return list(session.scalars(query))


def expire(session: Session, job_id: str, policy: Policy) -> JobState | None:
    """Take the job from a worker whose lease has run out; None when it has not, after all."""
    row = state.lock(
        session, EVERYTHING, job_id, JobRow.state.in_(HELD), JobRow.lease_until < db_now()
    )
    if row is None or row.lease_until is None:
        return None
    lost = Failure.from_code(
        FailureCode.WORKER_LOST,
        f"Worker {row.worker_id} has not renewed its lease during {row.stage}.",
    )
    return _apply(session, row, Ending("lost", failure=lost), policy, row.lease_until)


def _apply(
    session: Session, row: JobRow, ending: Ending, policy: Policy, ended_at: datetime
) -> JobState:
    attempt = session.get_one(AttemptRow, (row.id, row.epoch))
    seconds = max(0.0, (ended_at - attempt.started_at).total_seconds())
    attempt.ended_at = ended_at
    attempt.outcome = ending.outcome
    if _is_lack(ending):
        attempt.outcome = "released"
    step = _next(session, row, ending, policy)
    attempt.failure = _as_json(step.failure or ending.failure, row)
    session.flush()
    values = {
        "worker_id": None,
        "lease_until": None,
        "used_seconds": row.used_seconds + seconds,
        **step.values,
    }
    if ending.outcome == "lost":
        values["epoch"] = row.epoch + 1  # the lost worker may still be alive: its writes end here
    if step.to in ENDED:
        grace = 0.0 if ending.outcome == "lost" else state.TRACKING_GRACE_SECONDS
        values |= {"ended_at": db_now(), "tracking_retry_at": db_now(grace)}
    data = {"stage": row.stage, "seconds": round(seconds, 3), **step.data}
    # Usage (the end of a job is counted in `move`, too) before shares, in every transaction: in
    # another order two endings could wait for each other.
    usage.add_attempt(session, row.project_id, attempt)
    state.move(session, row.id, JobState(row.state), step.to, step.event, data=data, **values)
    fair_shares.charge(session, row.project_id, attempt.gpus, seconds)
    return step.to


def _next(session: Session, row: JobRow, ending: Ending, policy: Policy) -> _Step:
    now = clock(session)
    if row.state == JobState.CANCELLING:
        return _Step(JobState.CANCELLED, "cancelled", {}, {})
    if ending.outcome == "finished":
        return _after_finish(row, ending.result or {}, now)
    if ending.failure is not None and ending.outcome in ("failed", "lost"):
        if _is_lack(ending):
            return _after_lack(row, ending.failure, now)
        if _is_prepared_again(session, row, ending.failure, policy):
            return _prepared_again(row, ending.failure, now)
        if RULES[ending.failure.code].is_crash:
            return _after_crash(row, ending.failure, ending.outcome, policy, now)
        return _after_failure(row, ending.failure, policy, now)
    return _Step(_waiting(row), "released", {}, _again(now, 0))


def _after_finish(row: JobRow, result: dict[str, Any], now: datetime) -> _Step:
    results = {**row.results, row.stage: jsonable(result)}
    following = next_stage(Stage(row.stage))
    if following is None:
        done = {"results": results, "follow_up": None}
        return _Step(JobState.SUCCEEDED, "stage_finished", {}, done)
    spec = JobSpec.accepted(row.spec)
    values = {"results": results, **state.waiting_for(following, spec, now)}
    if following is Stage.PUBLISH:
        # It counts no steps of its own; users still want to see how far the training got.
        del values["progress"]
    return _Step(_waiting(row), "stage_finished", {"next_stage": following}, values)


def _is_prepared_again(session: Session, row: JobRow, failure: Failure, policy: Policy) -> bool:
    """Unless that did not help, and attempts at this stage keep ending in the same way."""
    if not RULES[failure.code].is_prepared_again:
        return False
    before = (
        select(AttemptRow.failure)
        .where(
            AttemptRow.job_id == row.id,
            AttemptRow.stage == row.stage,
            AttemptRow.epoch < row.epoch,
        )
        .order_by(AttemptRow.epoch.desc())
        .limit(policy.crash_limit - 1)
    )
    codes = [(earlier or {}).get("code") for earlier in session.scalars(before)]
    return len(codes) < policy.crash_limit - 1 or any(code != failure.code for code in codes)


def _prepared_again(row: JobRow, failure: Failure, now: datetime) -> _Step:
    """The results that it has stay: it is prepared the same, or else fails (data_changed)."""
    reported = _while_retrying(row, failure)
    data = {"failure": _as_json(reported, row), "retry": True, "next_stage": Stage.PREPARE}
    values = state.waiting_for(Stage.PREPARE, JobSpec.accepted(row.spec), now)
    if row.follow_up is not None:
        del values["progress"]  # how far the training came
    return _Step(_waiting(row), "attempt_failed", data, values, reported)


def _after_failure(row: JobRow, failure: Failure, policy: Policy, now: datetime) -> _Step:
    rule = RULES[failure.code]
    if rule.retryable and row.retry_count < row.max_retries:
        wait = min(MAX_BACKOFF_SECONDS, policy.retry_backoff_seconds * 2**row.retry_count)
        reported = _while_retrying(row, failure, wait)
        data = {"failure": _as_json(reported, row), "retry": True, "wait_seconds": wait}
        values = {**_again(now, wait), "retry_count": row.retry_count + 1}
        return _Step(_waiting(row), "attempt_failed", data, values, reported)
    reported = next_steps.final(failure, row.retry_count + 1, has_model=_has_model(row))
    reason = _as_json(reported, row)
    data = {"failure": reason, "retry": False}
    return _Step(rule.state, "attempt_failed", data, {"failure": reason}, reported)


def _is_lack(ending: Ending) -> bool:
    return ending.outcome == "failed" and ending.failure is not None and ending.failure.is_lack


def _after_lack(row: JobRow, failure: Failure, now: datetime) -> _Step:
    """The job waits for its host; workers check it before they claim it (`waiting_jobs.lack`), so
    that later attempts are late only if the end of the lack cannot be noticed."""
    most = (
        wait_reasons.MAX_LACK_SECONDS if failure.bytes_of("bytes_needed") else MAX_BACKOFF_SECONDS
    )
    wait = min(most, _FIRST_LACK_SECONDS * 2 ** min(row.stage_attempt - 1, 10))
    words = next_steps.paused if _waiting(row) is JobState.PAUSED else next_steps.waiting
    reported = words(failure)
    data = {"failure": _as_json(reported, row), "wait_seconds": wait}
    return _Step(_waiting(row), "released", data, _again(now, wait), reported)


def _after_crash(
    row: JobRow, failure: Failure, outcome: Outcome, policy: Policy, now: datetime
) -> _Step:
    crashes = row.crash_count + 1
    event = "lease_expired" if outcome == "lost" else "attempt_failed"
    if crashes < policy.crash_limit:
        reported = _while_retrying(row, failure)
        data = {"failure": _as_json(reported, row), "retry": True}
        return _Step(
            _waiting(row), event, data, {**_again(now, 0), "crash_count": crashes}, reported
        )
    limit = _as_json(next_steps.crash_limit(failure, crashes, row.stage), row)
    reported = next_steps.final(failure, crashes, has_model=_has_model(row))
    values = {"failure": limit, "crash_count": crashes}
    return _Step(JobState.FAILED, event, {"failure": limit, "retry": False}, values, reported)


def _while_retrying(row: JobRow, failure: Failure, wait: float = 0) -> Failure:
    if _waiting(row) is JobState.PAUSED:
        return next_steps.paused(failure)
    return next_steps.retrying(failure, wait)


def _has_model(row: JobRow) -> bool:
    """A job that only evaluates or predicts has none."""
    return row.stage == Stage.PUBLISH and bool(row.results.get(Stage.TRAIN, {}).get("output_dir"))


def _as_json(failure: Failure | None, row: JobRow) -> dict[str, Any] | None:
    if failure is None:
        return None
    stored: dict[str, Any] = next_steps.addressed(failure, row.id).model_dump(mode="json")
    return {name: jsonable(value) for name, value in stored.items()}


def _waiting(row: JobRow) -> JobState:
    """The state of an unfinished job: the user may have asked for a pause meanwhile."""
    return JobState.PAUSED if row.state == JobState.PAUSING else JobState.QUEUED


def _again(now: datetime, wait_seconds: float) -> dict[str, Any]:
    at = db_now(wait_seconds)
    return {"queued_at": now, "not_before": at, "next_publish_at": at, "phase": None}
