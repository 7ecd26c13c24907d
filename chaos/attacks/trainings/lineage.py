"""SIGKILL of jobs that start from another job's model, training or checkpoint."""

import random
import time
from collections import Counter
from typing import Any, Final

from chaos.attacks.processes.kills import kill_one
from chaos.checks import checker
from chaos.rows import Row, Scale, timed
from chaos.stack.fault_stack import JOB_SECONDS, DatabaseKind, FaultStack, running
from chaos.stack.work import Undisturbed
from tests.e2e.stack import ENDED

HOLDS: Final = (
    "`model.job`, `resume_from` and `promote` reach the undisturbed weights and losses, no job "
    "succeeds twice, MLflow holds each number once, the job they started from is unchanged"
)
_KINDS: Final = ("stage", "supervisor", "worker")
_WEIGHTS: Final = (4, 2, 1)
_KEPT: Final[dict[str, Any]] = {"save_total_limit": 10}
_KILLS_PER_ROUND: Final = 5
"""At most so many SIGKILLs for every three jobs."""
_STEP: Final = 4
"""The checkpoint that is promoted: neither the last nor the best of the first job."""


def run(seed: int, scale: Scale) -> Row:
    kills = scale.pick(short=3, full=40)
    rng = random.Random(seed)
    database: DatabaseKind = scale.pick(short="sqlite", full="postgres")
    with (
        timed("SIGKILL of jobs that build on others", HOLDS) as report,
        running(workers=2, database=database, mlflow=True) as stack,
    ):
        first = stack.material.body(steps=12, **_KEPT)
        source = _ended(stack, first)
        before = _state(stack, source)
        bodies = [_derived(stack, source), _continued(first, source)]
        known = [stack.undisturbed(body) for body in bodies]
        promoted = _undisturbed_promotion(stack, first)
        killed: Counter[str] = Counter()
        expected: dict[str, Undisturbed | None] = {}
        while killed.total() < kills:
            ended = _ended(stack, first)
            jobs = dict(zip(map(stack.submit, bodies), known, strict=True))
            _promote(stack, ended)
            jobs[ended] = promoted
            left = min(kills - killed.total(), _KILLS_PER_ROUND)
            killed += _kill_some(stack, rng, left, list(jobs))
            stack.wait_for_ends(list(jobs))
            expected |= jobs
        report.faults += checker.broken(stack, expected)
        if _state(stack, source) != before:
            report.faults.append(f"{source}, from which they started, has changed")
        report.faults += checker.left_over(stack)
        counts = ", ".join(f"{killed[kind]} {kind}" for kind in _KINDS)
        report.done = (
            f"{killed.total()} SIGKILLs over {len(expected)} jobs ({counts}), a third each started "
            f"from a model, continued, promoted, seed {seed}"
        )
        report.outcome = f"{len(expected)} of {len(expected)} as undisturbed"
    return report.row()


def _derived(stack: FaultStack, source: str) -> dict[str, Any]:
    body = stack.material.body(seed=1, steps=12, **_KEPT)
    return body | {"model": {"job": source, "checkpoint": 8}}


def _continued(first: dict[str, Any], source: str) -> dict[str, Any]:
    more = {"max_steps": 24, "resume_from": {"job": source, "checkpoint": 8}}
    return first | {"training": first["training"] | more}


def _ended(stack: FaultStack, body: dict[str, Any]) -> str:
    job_id = stack.submit(body)
    stack.wait_for_ends([job_id])
    return job_id


def _promote(stack: FaultStack, job_id: str) -> None:
    path = f"/v1/jobs/{job_id}/checkpoints/{_STEP}/promote"
    stack.request("POST", path).raise_for_status()


def _undisturbed_promotion(stack: FaultStack, first: dict[str, Any]) -> Undisturbed:
    job_id = _ended(stack, first)
    _promote(stack, job_id)
    stack.wait_for_ends([job_id])
    page = stack.job(job_id)
    assert page["state"] == "succeeded", page["failure"]
    assert page["result"]["model_step"] == _STEP
    return Undisturbed(page["result"]["weights_sha256"], stack.losses(job_id))


def _state(stack: FaultStack, job_id: str) -> tuple[Any, ...]:
    page = stack.job(job_id)
    checkpoints = stack.request("GET", f"/v1/jobs/{job_id}/checkpoints").json()["data"]
    files = [
        stack.request("GET", f"/v1/jobs/{job_id}/checkpoints/{each['step']}").json()["files"]
        for each in checkpoints
    ]
    return page["state"], page["result"], checkpoints, files


def _kill_some(
    stack: FaultStack, rng: random.Random, kills: int, job_ids: list[str]
) -> Counter[str]:
    """Kill until there were `kills` or all jobs have ended; how many of each kind."""
    killed: Counter[str] = Counter()
    deadline = time.monotonic() + JOB_SECONDS
    while killed.total() < kills and time.monotonic() < deadline:
        time.sleep(rng.expovariate(1))
        stack.revive()
        if all(stack.job(job_id)["state"] in ENDED for job_id in job_ids):
            break
        kind = rng.choices(_KINDS, _WEIGHTS)[0]
        if kill_one(stack, kind, rng) is not None:
            killed[kind] += 1
    return killed
