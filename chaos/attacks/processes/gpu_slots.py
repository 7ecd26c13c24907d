"""SIGKILL of processes that hold GPUs: two workers see the same two, jobs need one or both."""

import random
import time
from collections import Counter
from contextlib import suppress

import psutil

from chaos.attacks.processes.kills import Work, kill_one
from chaos.checks import checker
from chaos.rows import Row, Scale, timed
from chaos.stack.fault_stack import FaultStack, running
from chaos.stack.processes import attempt_of, marked
from chaos.stack.work import stub_body

HOLDS = (
    "no two attempts have the same GPU, each attempt sees as many GPUs as its job requests, "
    "all jobs succeed, no lock is left"
)
_KINDS, _WEIGHTS = ("stage", "supervisor", "worker"), (3, 3, 1)


def run(seed: int, scale: Scale) -> Row:
    kills = scale.pick(short=6, full=100)
    rng = random.Random(seed)
    bodies = [
        stub_body(steps=20, seconds=0.1) | {"resources": {"gpus": count}} for count in (1, 2, 1)
    ]
    with (
        timed("SIGKILL of GPU holders", HOLDS) as report,
        running(workers=2, stubs=True, gpus=True) as stack,
    ):
        work = Work(stack, bodies)
        for _ in range(6):
            work.submit()
        killed: Counter[str] = Counter()
        samples = 0
        while killed.total() < kills:
            until = time.monotonic() + rng.expovariate(1 / 0.7)
            while time.monotonic() < until:
                report.faults += _shared(stack)
                samples += 1
            stack.revive()
            work.ensure_open_job()
            kind = rng.choices(_KINDS, _WEIGHTS)[0]
            killed[kind] += kill_one(stack, kind, rng) is not None
        stack.wait_for_ends(list(work.expected))
        report.faults += checker.broken(stack, work.expected)
        report.faults += _wrong_counts(stack, list(work.expected))
        report.faults += checker.left_over(stack)
        counts = ", ".join(f"{killed[kind]} {kind}" for kind in _KINDS)
        jobs = len(work.expected)
        report.done = f"{killed.total()} SIGKILLs over {jobs} jobs ({counts}), seed {seed}"
        report.outcome = (
            f"{jobs} of {jobs} succeeded, no GPU with two attempts in {samples} samples"
        )
    return report.row()


def _shared(stack: FaultStack) -> list[str]:
    """GPUs that stages of two attempts see now."""
    users: dict[str, set[tuple[str, int]]] = {}
    for process in marked(stack.mark):
        attempt = attempt_of(process)
        if attempt is None:
            continue
        with suppress(psutil.Error):
            visible = process.environ().get("CUDA_VISIBLE_DEVICES", "")
            for gpu in filter(None, visible.split(",")):
                users.setdefault(gpu, set()).add(attempt)
    return [f"{gpu} is used by {sorted(who)}" for gpu, who in users.items() if len(who) > 1]


def _wrong_counts(stack: FaultStack, job_ids: list[str]) -> list[str]:
    """Attempts of `train` that had another number of GPUs than their job requests."""
    faults = []
    for job_id in job_ids:
        requested = stack.job(job_id)["spec"]["resources"]["gpus"]
        for event in stack.pages(f"/v1/jobs/{job_id}/events"):
            if event["type"] == "stage_started":
                wanted = requested if event["data"]["stage"] == "train" else 0
                if len(event["data"]["gpus"]) != wanted:
                    faults.append(f"{job_id}: {event['data']}")
    return faults
