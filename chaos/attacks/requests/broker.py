"""The broker loses its data, restarts, and is unreachable, while a job runs and others arrive."""

import time
from collections.abc import Iterator
from typing import Any, Final

from chaos.checks import checker
from chaos.rows import Row, Scale, timed
from chaos.stack.fault_stack import FaultStack, running
from chaos.stack.processes import stages
from chaos.stack.work import stub_body

HOLDS: Final = (
    "no job is lost; queued work starts within 30 s of the broker's return; the running stage "
    "continues in the same attempt; every worker receives messages again"
)

_START_SECONDS: Final = 30.0
# Ends only by the cancel at the end of the attack.
_ENDLESS: Final = 10_000_000


def run(_seed: int, scale: Scale) -> Row:
    outage_seconds = scale.pick(short=3.0, full=150.0)
    # The default; the short version cannot wait half a minute for each message.
    defaults = {"FINETUNE_REPUBLISH_SECONDS": "30"}
    variables: dict[str, str] = scale.pick(short={}, full=defaults)
    with (
        timed("broker loses its data, restarts, unreachable", HOLDS) as report,
        running(workers=2, stubs=True, variables=variables) as stack,
    ):
        long = stack.submit(_endless(stack, scale))
        epoch = _train_epoch(stack, long, stack.wait_for_step(long, 1))
        busy = stack.job(long)["worker"]
        waits = {}
        jobs = []
        for name, disturb in (
            *(("FLUSHALL", _flush), ("restart", _restart)),
            ("outage", _outage),
        ):
            before = _step(stack, long)
            job_id = disturb(stack, outage_seconds)
            waits[name] = _seconds_to_start(stack, job_id)
            jobs.append(job_id)
            stack.wait_for_ends([job_id])
            if _step(stack, long) <= before:
                report.faults.append(f"{name}: the running job made no step after {before}")
        if _train_epoch(stack, long, stack.job(long)) != epoch:
            report.faults.append("the running job was started again")
        stack.request("POST", f"/v1/jobs/{long}/cancel")
        jobs += _run_until_used(stack, str(busy))
        stack.wait_for_ends([*jobs, long])
        report.faults += _late(waits)
        whole = stack.undisturbed(stub_body())
        report.faults += checker.broken(stack, {long: None, **dict.fromkeys(jobs, whole)})
        report.faults += checker.left_over(stack)
        report.done = (
            f"FLUSHALL, a restart without saved data, {outage_seconds:.0f} s unreachable; one job "
            "running"
        )
        starts = ", ".join(f"{seconds:.1f} s after {name}" for name, seconds in waits.items())
        report.outcome = f"queued work started {starts}; the running job kept its attempt"
    return report.row()


def _endless(stack: FaultStack, scale: Scale) -> dict[str, Any]:
    if scale is Scale.FULL:
        return stack.material.body(steps=_ENDLESS, logging_steps=20, save_steps=500)
    return stub_body(steps=_ENDLESS, seconds=0.2)


# ---- attacks on the broker ----------------------------------------------------------------------
# Each returns a job that was submitted before the broker was reachable again.


def _flush(stack: FaultStack, _outage_seconds: float) -> str:
    """The job's message waits in the broker, because no free worker runs."""
    free = _free_worker(stack)
    stack.parts[free].stop()
    job_id = stack.submit(stub_body())
    stack.broker.client.flushall()
    stack.start_worker(free)
    return job_id


def _restart(stack: FaultStack, _outage_seconds: float) -> str:
    stack.broker.stop()
    job_id = stack.submit(stub_body())
    stack.broker.start()
    return job_id


def _outage(stack: FaultStack, outage_seconds: float) -> str:
    stack.broker.stop()
    job_id = stack.submit(stub_body())
    time.sleep(outage_seconds)
    stack.broker.start()
    return job_id


def _free_worker(stack: FaultStack) -> str:
    return next(name for name in stack.workers if not stages(stack.parts[name]))


# ---- the results --------------------------------------------------------------------------------


def _seconds_to_start(stack: FaultStack, job_id: str) -> float:
    """From now, when the broker is reachable again, until a worker claims the job."""
    started = time.monotonic()
    stack.wait(lambda: stack.job(job_id)["state"] != "queued", 120, f"the start of {job_id}")
    return time.monotonic() - started


def _late(waits: dict[str, float]) -> Iterator[str]:
    for name, seconds in waits.items():
        if seconds > _START_SECONDS:
            yield f"{name}: queued work started only after {seconds:.1f} s"


def _run_until_used(stack: FaultStack, worker: str) -> list[str]:
    """Submit jobs until `worker`, busy during the attack, takes one; their ids."""
    jobs = []
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        pair = [stack.submit(stub_body()) for _ in range(2)]
        jobs += pair
        stack.wait_for_ends(pair)
        events = [event for job_id in pair for event in stack.pages(f"/v1/jobs/{job_id}/events")]
        if any(event["data"].get("worker") == worker for event in events):
            return jobs
    raise TimeoutError(f"{worker} no longer takes jobs")


def _step(stack: FaultStack, job_id: str) -> int:
    return int((stack.job(job_id)["progress"] or {}).get("step", 0))


def _train_epoch(stack: FaultStack, job_id: str, page: dict[str, Any]) -> tuple[str, int]:
    """The job's state and its newest epoch."""
    events = stack.pages(f"/v1/jobs/{job_id}/events")
    return page["state"], max(event["epoch"] for event in events)
