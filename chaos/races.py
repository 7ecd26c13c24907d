"""Cancels and pauses that race with the end of the job: the answer must be what is stored."""

import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from chaos import checker
from chaos.rows import Row, Scale, timed
from chaos.stack import FaultStack, running
from chaos.work import stub_body
from tests.e2e.stack import ENDED

HOLDS: Final = (
    "the answer given is the state stored: a wish that was accepted is what becomes of the job, "
    "one that came too late is refused with the job's end"
)

_AT_ONCE: Final = 4
# Of the time that `publish` takes: some of the wishes come when it has ended.
_LATEST: Final = 1.2
_REST: Final = (*ENDED, "paused")


@dataclass(frozen=True)
class _Race:
    job_id: str
    wish: str
    status: int
    answered: str
    """State in the answer, or in the problem that refused the wish."""
    rested: str
    """State in which the job came to rest."""


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
            whole = took[_AT_ONCE // 2]
            races = list(pool.map(lambda plan: _race(stack, plan[0], plan[1] * whole), plans))
        for race in races:
            report.faults += _lies(race)
        paused = [race.job_id for race in races if race.rested == "paused"]
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
        wishes = Counter(race.wish for race in races)
        report.done = f"{wishes['cancel']} cancels and {wishes['pause']} pauses, seed {seed}"
        report.outcome = _summary(races)
    return report.row()


def _seconds_of_publish(stack: FaultStack) -> float:
    """From its first sight to the end of the job, while as many others run as later."""
    job_id = _submit_until_publish(stack)
    seen = time.monotonic()
    stack.wait_for_ends([job_id])
    return time.monotonic() - seen


def _submit_until_publish(stack: FaultStack) -> str:
    job_id = stack.submit(stub_body())
    while stack.job(job_id)["stage"] != "publish":
        time.sleep(0.02)
    return job_id


def _race(stack: FaultStack, wish: str, delay: float) -> _Race:
    job_id = _submit_until_publish(stack)
    time.sleep(delay)
    answer = stack.request("POST", f"/v1/jobs/{job_id}/{wish}")
    answered: dict[str, Any] = answer.json()
    deadline = time.monotonic() + 120
    while (rested := stack.job(job_id)["state"]) not in _REST and time.monotonic() < deadline:
        time.sleep(0.05)
    return _Race(job_id, wish, answer.status_code, str(answered.get("state")), rested)


def _lies(race: _Race) -> Iterator[str]:
    """An answer that was not the truth, or did not stay it."""
    allowed: dict[str, set[str]] = {
        "cancelling": {"cancelled"},
        # `publish` was done before it could stop.
        "pausing": {"paused", "succeeded"},
    }
    if race.status not in (200, 202, 409):
        yield f"{race.job_id}: {race.wish} answered {race.status}"
    elif race.rested not in allowed.get(race.answered, {race.answered}):
        yield f"{race.job_id}: {race.wish} answered {race.answered}, the job is {race.rested}"
    elif race.status == 409 and race.answered not in ENDED:
        yield f"{race.job_id}: {race.wish} was refused in state {race.answered}"


def _summary(races: list[_Race]) -> str:
    """Such as `120 cancel → cancelled, 30 cancel refused, succeeded`."""
    kinds = Counter(
        f"{race.wish} refused, {race.rested}"
        if race.status == 409
        else f"{race.wish} → {race.rested}"
        for race in races
    )
    return ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
