"""Why a job waits, by the conditions of a claim (service/store/jobs/claims.py), and in words."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from service.api.schemas.waiting import Waiting, WaitingReason
from service.contract.failures import RULES, Failure
from service.contract.routing import CPU_QUEUE, GPU_QUEUE, gpus_of
from service.contract.states import JobState
from service.settings import Settings
from service.store.database import clock
from service.store.jobs import wait_reasons
from service.store.jobs.queries import Place
from service.store.jobs.wait_reasons import GpuQuota
from service.store.scheduling.fleet import Fleet, LiveWorker
from service.store.scope import Scope
from service.store.tables.jobs import AttemptRow, JobRow

_LONGEST_PHRASE: Final = 240
_UNSENT: Final = timedelta(seconds=20)
"""The reconciler sends a due message within seconds, even after an outage of the broker."""

Found = tuple[WaitingReason, str]


# ---- reading ----------------------------------------------------------------------------------


def of_page(
    connection: Connection,
    job: JobRow,
    place: Place | None,
    attempts: Sequence[AttemptRow],
    settings: Settings,
) -> Waiting | None:
    """None for a job that does not wait; a running one needs no SQL."""
    failure = wait_reasons.last_failure(job, attempts)
    if job.state == JobState.PAUSED:
        return _waiting(job, _paused(job), failure, settings)
    if place is None:
        return None
    if job.not_before > place.now:
        return _backoff(job, failure, settings)
    fleet = Fleet.read(connection, settings.alive_seconds)
    quota = wait_reasons.gpu_quotas(connection, [job]).get(job.project_id)
    found = _queued(_Queued(job, place.position, place.now, quota), fleet)
    return _waiting(job, found, failure, settings)


def of_list(
    session: Session, scope: Scope, listed: Sequence[JobRow], settings: Settings
) -> dict[str, Waiting]:
    """Job → why it waits, of those that do; as many statements for one as for a hundred."""
    waiting = [job for job in listed if job.state in (JobState.QUEUED, JobState.PAUSED)]
    if not waiting:
        return {}
    now = clock(session)
    failures = wait_reasons.last_failures(session, scope, waiting)
    due = [job for job in waiting if job.state == JobState.QUEUED and job.not_before <= now]
    places = wait_reasons.Places(session, sorted({job.queue for job in due}))
    connection = session.connection()
    fleet = Fleet.read(connection, settings.alive_seconds) if due else Fleet(())
    quotas = wait_reasons.gpu_quotas(connection, due)
    found: dict[str, Waiting] = {}
    for job in waiting:
        failure = failures.get(job.id)
        if job.state == JobState.PAUSED:
            found[job.id] = _waiting(job, _paused(job), failure, settings)
        elif job.not_before > now:
            found[job.id] = _backoff(job, failure, settings)
        else:
            quota = quotas.get(job.project_id)
            reason = _queued(_Queued(job, places.place_of(job), now, quota), fleet)
            found[job.id] = _waiting(job, reason, failure, settings)
    return found


# ---- deciding ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Queued:
    """A job that a worker may claim now."""

    job: JobRow
    position: int | None
    """None: behind the places that are counted."""
    now: datetime
    quota: GpuQuota | None

    @property
    def is_over_quota(self) -> bool:
        gpus = gpus_of(self.job.queue)
        return self.quota is not None and self.quota.in_use + gpus > self.quota.limit


def _queued(waiting: _Queued, fleet: Fleet) -> Found:
    job = waiting.job
    able = fleet.can_run(job.queue, job.min_gpus)
    if not able:
        return WaitingReason.NO_WORKER, _no_worker(job, fleet)
    if waiting.quota is not None and waiting.is_over_quota:
        return WaitingReason.OVER_QUOTA, _over_quota(job, waiting.quota)
    if not any(worker.is_free(job.queue) for worker in able):
        return WaitingReason.BUSY_WORKERS, f"{_busy(job, able)}; {_place(waiting.position)}"
    if waiting.position != 1:
        return WaitingReason.QUEUED, _place(waiting.position)
    if waiting.now - job.next_publish_at > _UNSENT:
        return WaitingReason.QUEUED, (
            "a worker is free, but the job's message was not sent: GET /health/ready says whether "
            "the broker is reachable; check that the reconciler runs"
        )
    return WaitingReason.QUEUED, "next in the queue: a free worker takes it in a moment"


# ---- sentences --------------------------------------------------------------------------------


def _backoff(job: JobRow, failure: dict[str, Any] | None, settings: Settings) -> Waiting:
    waiting = _waiting(job, (WaitingReason.BACKOFF, "waiting for a retry"), failure, settings)
    waiting.until = job.not_before
    if waiting.failure is not None and waiting.failure.is_lack:
        waiting.reason = WaitingReason.INSUFFICIENT_RESOURCES
        waiting.message = f"waits for the worker's machine: {_phrase(waiting.failure.message)}"
    elif waiting.failure is not None:
        retry = f"retry {waiting.attempt} of {waiting.of}"
        waiting.message = f"{retry}: {_phrase(waiting.failure.message)}"
    return waiting


def _waiting(
    job: JobRow, found: Found, failure: dict[str, Any] | None, settings: Settings
) -> Waiting:
    reason, message = found
    is_paused = reason is WaitingReason.PAUSED
    waiting = Waiting(
        reason=reason, message=message, since=job.updated_at if is_paused else job.queued_at
    )
    if failure is not None:
        waiting.failure = Failure.model_validate(failure)
        if waiting.failure.is_lack:
            return waiting
        is_crash = RULES[waiting.failure.code].is_crash
        waiting.attempt = job.crash_count if is_crash else job.retry_count
        waiting.of = settings.crash_limit - 1 if is_crash else job.max_retries
    return waiting


def _paused(job: JobRow) -> Found:
    continues = f"`finetune resume {job.id}` continues it"
    if job.trial is None:
        return WaitingReason.PAUSED, f"paused: {continues}"
    decides = f"its search continues or ends it (`finetune search watch {job.search_id}`)"
    return WaitingReason.PAUSED, f"paused: {decides}; {continues} now"


def _no_worker(job: JobRow, fleet: Fleet) -> str:
    device = "CPU" if job.queue == CPU_QUEUE else "GPU"
    start = f"start one with `finetune worker --queues {device.lower()}`"
    if not fleet.workers:
        return f"no worker is running: {start}"
    if not job.min_gpus:
        return f"no live worker runs the stage {job.stage} ({device}): {start}"
    gpus = "a GPU" if job.min_gpus == 1 else f"{job.min_gpus} GPUs"
    most = fleet.most_gpus
    if most >= job.min_gpus:  # but for other queues
        return f"no live worker with {gpus} serves the queue `{GPU_QUEUE}`: {start}"
    largest = "" if job.min_gpus == 1 else f" (the largest has {most or 'none'})"
    return f"no live worker has {gpus}{largest}: start one on a machine that has, or clone the " + (
        "job with `resources.gpus: 0`" if most == 0 else "job with fewer `resources.gpus`"
    )


def _over_quota(job: JobRow, quota: GpuQuota) -> str:
    needed = gpus_of(job.queue)
    if needed > quota.limit:
        return (
            f"the job needs {needed} GPUs and its project may have {quota.limit}: clone it with "
            "fewer `resources.gpus`, or ask the operator for more (quota `max_gpus`)"
        )
    return (
        f"the project uses {quota.in_use} of its {quota.limit} GPUs, and the job needs {needed} "
        "(quota `max_gpus`)"
    )


def _busy(job: JobRow, able: Sequence[LiveWorker]) -> str:
    if gpus_of(job.queue) > 1:
        return f"no worker has {gpus_of(job.queue)} free GPUs now"
    if len(able) == 1:
        return "the only worker that can run it is busy"
    return f"all {len(able)} workers that can run it are busy"


def _place(position: int | None) -> str:
    if position is None:
        return f"more than {wait_reasons.COUNTED} jobs are ahead of it in the queue"
    return "next in the queue" if position == 1 else f"number {position} in the queue"


def _phrase(message: str) -> str:
    """A sentence as the end of another: "Could not reach X." becomes "could not reach X"."""
    text = message.strip().removesuffix(".")
    if len(text) > _LONGEST_PHRASE:
        text = f"{text[:_LONGEST_PHRASE].rstrip()}…"
    return text[:1].lower() + text[1:] if text[1:2].islower() or text[1:2] == " " else text
