"""Cancels and pauses that race with the end of the job: the answer must match the stored state."""

import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from chaos.checks import checker
from chaos.rows import Row, Scale, timed
from chaos.stack.fault_stack import FaultStack, running
from chaos.stack.work import stub_body
from tests.e2e.stack import ENDED

HOLDS: Final = (
    "each answer is the stored state: an accepted action decides the job's state, one that came "
    "too late is refused and names the job's final state"
)

_AT_ONCE: Final = 4
# A share of the duration of `publish`: some of the actions come after its end.
_LATEST: Final = 1.2
_SETTLED: Final = (*ENDED, "paused")


@dataclass(frozen=True)
class _Race:
    job_id: str
    action: str
    status: int
    answered: str
    """State in the answer, or in the problem that refused the action."""
    final_state: str
    """The state in which the job ended or was paused."""


def run(seed: int, scale: Scale) -> Row:
    count = scale.pick(short=12, full=500)
    rng = random.Random(seed)
    plans = [(rng.choice(("cancel", "pause")), rng.uniform(0, _LATEST)) for _ in range(count)]
    with (
        timed("cancel and pause against the end", HOLDS) as report,
        running(workers=2, stubs=True, database="postgres") as stack,
    ):
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            took = sorted(pool.map(lambda _: _seconds_of_publish(stack), range(_AT_ONCE)))
            typical = took[_AT_ONCE // 2]
            races = list(pool.map(lambda plan: _race(stack, plan[0], plan[1] * typical), plans))
        for race in races:
            report.faults += _false_answers(race)
        paused = [race.job_id for race in races if race.final_state == "paused"]
        for job_id in paused:
            stack.request("POST", f"/v1/jobs/{job_id}/resume").raise_for_status()
        stack.wait_for_ends(paused)
        report.faults += checker.broken(stack, dict.fromkeys(race.job_id for race in races))
        report.faults += [
            f"{job_id}: {state} after its pause"
            for job_id in paused
            if (state := stack.job(job_id)["state"]) != "succeeded"
        ]
        report.faults += checker.left_over(stack)
        actions = Counter(race.action for race in races)
        report.done = f"{actions['cancel']} cancels and {actions['pause']} pauses, seed {seed}"
        report.outcome = _summary(races)
    return report.row()


def _seconds_of_publish(stack: FaultStack) -> float:
    """From the start of `publish` to the end of the job, with as many others running as later."""
    job_id = _submit_until_publish(stack)
    started = time.monotonic()
    stack.wait_for_ends([job_id])
    return time.monotonic() - started


def _submit_until_publish(stack: FaultStack) -> str:
    job_id = stack.submit(stub_body())
    while stack.job(job_id)["stage"] != "publish":
        time.sleep(0.02)
    return job_id


def _race(stack: FaultStack, action: str, delay: float) -> _Race:
    job_id = _submit_until_publish(stack)
    time.sleep(delay)
    answer = stack.request("POST", f"/v1/jobs/{job_id}/{action}")
    answered: dict[str, Any] = answer.json()
    deadline = time.monotonic() + 120
    while (
        final_state := stack.job(job_id)["state"]
    ) not in _SETTLED and time.monotonic() < deadline:
        time.sleep(0.05)
    return _Race(job_id, action, answer.status_code, str(answered.get("state")), final_state)


def _false_answers(race: _Race) -> Iterator[str]:
    """An answer that contradicts the job's final state."""
    allowed: dict[str, set[str]] = {
        "cancelling": {"cancelled"},
        # `publish` ended before it could be paused.
        "pausing": {"paused", "succeeded"},
    }
    if race.status not in (200, 202, 409):
        yield f"{race.job_id}: {race.action} answered {race.status}"
    elif race.final_state not in allowed.get(race.answered, {race.answered}):
        answer = f"{race.action} answered {race.answered}"
        yield f"{race.job_id}: {answer}, the job is {race.final_state}"
    elif race.status == 409 and race.answered not in ENDED:
        yield f"{race.job_id}: {race.action} was refused in state {race.answered}"


def _summary(races: list[_Race]) -> str:
    """Such as `120 cancel → cancelled, 30 cancel refused, succeeded`."""
    kinds = Counter(
        f"{race.action} refused, {race.final_state}"
        if race.status == 409
        else f"{race.action} → {race.final_state}"
        for race in races
    )
    return ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
