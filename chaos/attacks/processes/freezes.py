"""SIGSTOP for three lease lengths, then SIGCONT: a process that wakes up late must not write."""

import os
import random
import signal
import time
from contextlib import suppress
from typing import Any, Final

from chaos.checks import checker
from chaos.rows import Row, Scale, timed
from chaos.stack.fault_stack import LEASE_SECONDS, FaultStack, two_workers
from chaos.stack.processes import stages, supervisors
from chaos.stack.work import Undisturbed, stub_body
from tests.e2e.stack import ENDED

HOLDS: Final = (
    "no write with a stale epoch in jobs, events, checkpoints, artifacts or MLflow; a frozen stage "
    "or control plane costs no attempt; the weights are the undisturbed run's"
)

_LEASES: Final = 3
# If one of these is frozen, the job moves to another worker; otherwise it stays.
_LOSE_THE_JOB: Final = ("worker", "supervisor")
_KEEP_THE_JOB: Final = ("stage", "api", "reconciler")


def run(seed: int, scale: Scale) -> Row:
    victims = scale.pick(short=["supervisor", "stage"], full=[*_LOSE_THE_JOB, *_KEEP_THE_JOB] * 4)
    rng = random.Random(seed)
    with (
        timed("SIGSTOP, SIGCONT", HOLDS) as report,
        two_workers(scale) as stack,
    ):
        body = _body(stack, scale)
        undisturbed = stack.undisturbed(body)
        jobs: dict[str, Undisturbed | None] = {}
        job_id = ""
        for victim in victims:
            if not job_id or not _has_enough_left(stack, job_id):
                stack.wait_for_ends(list(jobs))  # it would keep the other worker from taking over
                job_id = stack.submit(body)
                jobs[job_id] = undisturbed
            stack.wait_for_step(job_id, 10)
            time.sleep(rng.uniform(0, 1))
            report.faults += _freeze(stack, job_id, victim)
        stack.wait_for_ends(list(jobs))
        report.faults += checker.broken(stack, jobs)
        report.faults += checker.left_over(stack)
        report.done = (
            f"{', '.join(victims)} frozen for {_LEASES * LEASE_SECONDS:.0f} s, {_LEASES} leases, "
            f"while a job trained; {len(jobs)} jobs, seed {seed}"
        )
        report.outcome = f"{len(jobs)} of {len(jobs)} succeeded with the undisturbed run's sha256"
    return report.row()


def _body(stack: FaultStack, scale: Scale) -> dict[str, Any]:
    """A job that trains several times as long as a freeze."""
    if scale is Scale.SHORT:
        return stub_body(steps=80, seconds=0.2)
    return stack.material.body(steps=8_000, save_steps=200, logging_steps=100)


def _has_enough_left(stack: FaultStack, job_id: str) -> bool:
    page = stack.job(job_id)
    progress = page["progress"] or {"step": 0, "of": 1}
    return page["state"] not in ENDED and progress["step"] < progress["of"] * 0.6


def _freeze(stack: FaultStack, job_id: str, victim: str) -> list[str]:
    """Freeze processes of the job or of the control plane; the faults."""
    page, epoch = stack.job(job_id), _epoch(stack, job_id)
    if (page["state"], page["stage"]) != ("running", "train"):
        return [f"{job_id} no longer trained when its {victim} should have been frozen"]
    frozen = _processes(stack, str(page["worker"]), victim)
    _send(frozen, signal.SIGSTOP)
    time.sleep(_LEASES * LEASE_SECONDS)
    # A frozen API cannot answer the request that follows.
    if victim == "api":
        _send(frozen, signal.SIGCONT)
    now = _epoch(stack, job_id)
    _send(frozen, signal.SIGCONT)
    if victim in _LOSE_THE_JOB and now == epoch:
        return [f"{job_id}: still epoch {epoch} while its {victim} was frozen"]
    if victim in _KEEP_THE_JOB and now != epoch and stack.job(job_id)["stage"] == "train":
        return [f"{job_id}: epoch {now} after {epoch}, only its {victim} was frozen"]
    return []


def _epoch(stack: FaultStack, job_id: str) -> int:
    return max(int(event["epoch"]) for event in stack.pages(f"/v1/jobs/{job_id}/events"))


def _processes(stack: FaultStack, worker_id: str, victim: str) -> list[int]:
    """Processes of the worker with this id, of the API, or of the reconciler."""
    if victim in ("api", "reconciler"):
        return [process.pid for process in stack.parts[victim].family()]
    name = stack.worker_named(worker_id)
    part = stack.parts[name]
    if victim == "worker":
        return [process.pid for process in part.family()]
    find = {"supervisor": supervisors, "stage": stages}[victim]
    return [process.pid for process in find(part)]


def _send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
