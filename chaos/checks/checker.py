"""Whether the service kept its promises: reads only the API and the events table.

Each function returns a sentence for each broken promise.
"""

import fcntl
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

from sqlalchemy import select

from chaos.checks.numbers import mlflow_faults
from chaos.stack.fault_stack import FaultStack
from chaos.stack.work import Undisturbed
from service.contract.states import STAGE_ORDER, JobState
from service.store.database import Database
from service.store.tables.jobs import EventRow
from tests.e2e.stack import ENDED

# Events of a running stage: only the attempt that holds the job may record them.
_STAGE_EVENTS = frozenset(
    {"phase", "notice", "checkpoint", "checkpoint_pruned", "artifact", "resumed"}
)


def broken(stack: FaultStack, expected: Mapping[str, Undisturbed | None]) -> list[str]:
    """All faults of the jobs. `expected`: job id → its result; None if any final state is right.

    If the stack has an MLflow, it must hold the same numbers as the API.
    """
    histories = _events(stack, list(expected))
    faults = []
    for job_id, undisturbed in expected.items():
        page = stack.job(job_id)
        found = [
            *history_faults(histories[job_id], page["state"]),
            *_page_faults(stack, page, histories[job_id]),
        ]
        if undisturbed is not None:
            found += _success_faults(page, undisturbed, stack.losses(job_id))
        if stack.mlflow_uri is not None:
            found += mlflow_faults(stack, page)
        faults += [f"{job_id}: {fault}" for fault in found]
    return faults


def left_over(stack: FaultStack) -> list[str]:
    """Stop the stack; the processes and device locks that are left."""
    try:
        stack.stop()
    except TimeoutExpired as slow:
        return [f"{slow.cmd} did not end within {slow.timeout:.0f} s of SIGTERM"]
    running = [
        f"process {process.pid} still runs: {' '.join(process.cmdline())[:200]}"
        for process in stack.left_over()
    ]
    locks = sorted(stack.home.glob("cache/devices/*.lock"))
    return running + [f"{lock.stem} is still held" for lock in locks if not is_free(lock)]


def is_free(device_lock: Path) -> bool:
    """Whether no training uses it (worker/devices/gpu_locks.py,
    worker/training/device_lock.py)."""
    with device_lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def _events(stack: FaultStack, job_ids: Sequence[str]) -> dict[str, list[EventRow]]:
    histories: dict[str, list[EventRow]] = {job_id: [] for job_id in job_ids}
    database = Database(stack.database_url)
    query = select(EventRow).where(EventRow.job_id.in_(job_ids)).order_by(EventRow.seq)
    try:
        with database.read() as session:
            for event in session.scalars(query):
                histories[event.job_id].append(event)
    finally:
        database.dispose()
    return histories


# ---- the history ------------------------------------------------------------------------------


def history_faults(events: Sequence[EventRow], state: str) -> list[str]:
    """The faults in the history of a job that is in `state`."""
    return [
        *_numbering(events),
        *_chain(events, state),
        *_endings(events),
        *_attempts(events),
    ]


def _numbering(events: Sequence[EventRow]) -> Iterator[str]:
    if [event.seq for event in events] != list(range(1, len(events) + 1)):
        yield f"the events have gaps: {[event.seq for event in events]}"


def _chain(events: Sequence[EventRow], state: str) -> Iterator[str]:
    """Each change of state starts where the previous one ended; the last one ends in `state`."""
    now: str | None = None
    for event in events:
        if "to" in event.data:
            if event.data.get("from") != now:
                yield f"event {event.seq} leaves {event.data.get('from')}, the state was {now}"
            now = event.data["to"]
    if now != state:
        yield f"the history ends in {now}, the job is {state}"


def _endings(events: Sequence[EventRow]) -> Iterator[str]:
    """One terminal state, and another one for each retry by the user."""
    ends = [event for event in events if event.data.get("to") in ENDED]
    retries = [event for event in events if event.data.get("from") in ENDED]
    if len(ends) != len(retries) + 1:
        yield f"{len(ends)} terminal states: {[event.type for event in ends]}"
    finished = Counter(e.data["stage"] for e in events if e.type == "stage_finished")
    twice = [stage for stage, count in finished.items() if count > 1]
    if twice and not retries:
        yield f"finished twice: {twice}"
    if ends and ends[-1].data["to"] == JobState.SUCCEEDED and list(finished) != [*STAGE_ORDER]:
        yield f"succeeded after {list(finished)}"


def _attempts(events: Sequence[EventRow]) -> Iterator[str]:
    """Epochs strictly increase, and only the holder of the newest one records stage events."""
    epoch, is_held = 0, False
    for event in events:
        if event.type == "stage_started":
            if is_held:
                yield f"event {event.seq} starts epoch {event.epoch} while {epoch} is held"
            if event.epoch <= epoch:
                yield f"event {event.seq} starts epoch {event.epoch} after {epoch}"
            epoch, is_held = event.epoch, True
        elif event.type in _STAGE_EVENTS:
            if event.type == "notice" and event.epoch == epoch == 0:
                continue  # a warning of the service, recorded with the submission
            if not is_held or event.epoch != epoch:
                yield f"event {event.seq}, {event.type}, of epoch {event.epoch}; {epoch} was last"
        elif event.data.get("to") not in (None, "pausing", "cancelling"):
            is_held = False


# ---- the page ---------------------------------------------------------------------------------


def _page_faults(
    stack: FaultStack, page: dict[str, Any], events: Sequence[EventRow]
) -> Iterator[str]:
    if page["state"] not in ENDED:
        yield f"the job is {page['state']}"
    path = f"/v1/jobs/{page['id']}"
    if len(stack.pages(f"{path}/events")) != len(events):
        yield "the API returns another number of events than the table holds"
    recorded = {event.data["step"] for event in events if event.type == "checkpoint"}
    answer = stack.request("GET", f"{path}/checkpoints", params={"limit": 1000})
    registered = {row["step"] for row in answer.raise_for_status().json()["data"]}
    if registered != recorded:
        yield f"checkpoints {sorted(registered)}, the events report {sorted(recorded)}"
    reported = {event.data["name"] for event in events if event.type == "artifact"}
    listed = {artifact["name"] for artifact in (page["result"] or {}).get("artifacts", [])}
    if not listed <= reported:
        yield f"artifacts that no event reports: {sorted(listed - reported)}"
    yield from _metric_faults(stack.pages(f"{path}/metrics"))


def _metric_faults(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    numbers = [row["seq"] for row in rows]
    if numbers != list(range(1, len(rows) + 1)):
        lost = sorted(set(range(1, max(numbers) + 1)) - set(numbers))
        yield f"of {len(rows)} metrics up to number {max(numbers)} these are missing: {lost[:5]}"
    twice = [key for key, n in Counter((r["kind"], r["step"]) for r in rows).items() if n > 1]
    if twice:
        yield f"duplicate metrics: {twice}"


def _success_faults(
    page: dict[str, Any], undisturbed: Undisturbed, losses: Mapping[int, float]
) -> Iterator[str]:
    if page["state"] != JobState.SUCCEEDED:
        yield f"the job is {page['state']}: {page['failure']}"
        return
    if page["result"]["weights_sha256"] != undisturbed.weights_sha256:
        yield f"weights {page['result']['weights_sha256']}, not {undisturbed.weights_sha256}"
    if losses != undisturbed.losses:
        steps = [n for n in undisturbed.losses if losses.get(n) != undisturbed.losses[n]]
        yield f"other losses than undisturbed, first at steps {steps[:3]}"
