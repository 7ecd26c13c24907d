"""SIGKILL of every kind of process of the service, at random moments."""

import os
import random
import signal
import sys
import time
from collections import Counter
from typing import Any, Final

from chaos.checks import checker
from chaos.rows import Row, Scale, timed
from chaos.stack.fault_stack import FaultStack, two_workers
from chaos.stack.processes import helpers, stages, supervisors
from chaos.stack.work import Undisturbed, stub_body
from tests.e2e.stack import Part

HOLDS: Final = (
    "each job reaches one terminal state, none succeeds twice, epochs increase, the weights are "
    "the undisturbed run's, MLflow holds each number once, no process is left"
)

_KINDS: Final = ("stage", "supervisor", "helper", "worker", "api", "reconciler")
_WEIGHTS: Final = (4, 2, 1, 2, 1, 1)
_SPECS: Final = 5
_SEARCH_SECONDS: Final = 15.0
_OPEN: Final = ("queued", "running")


def run(seed: int, scale: Scale) -> Row:
    jobs = scale.pick(short=3, full=50)
    kills = scale.pick(short=6, full=200)
    mean_gap = scale.pick(short=0.7, full=1.5)
    rng = random.Random(seed)
    with (
        timed("SIGKILL anywhere", HOLDS) as report,
        two_workers(scale) as stack,
    ):
        work = Work(stack, _bodies(stack, scale))
        for _ in range(jobs):
            work.submit()
        killed = _kill_many(stack, rng, kills, mean_gap, work)
        stack.wait_for_ends(list(work.expected))
        report.faults += checker.broken(stack, work.expected)
        report.faults += checker.left_over(stack)
        counts = ", ".join(f"{killed[kind]} {kind}" for kind in _KINDS)
        jobs = len(work.expected)
        report.done = f"{killed.total()} SIGKILLs over {jobs} jobs ({counts}), seed {seed}"
        report.outcome = f"{jobs} of {jobs} succeeded with the undisturbed sha256 and losses"
    return report.row()


def _bodies(stack: FaultStack, scale: Scale) -> list[dict[str, Any]]:
    if scale is Scale.SHORT:
        return [stub_body(steps=steps, seconds=0.1) for steps in (20, 30)]
    return [stack.material.body(seed=n, steps=300, save_steps=20) for n in range(_SPECS)]


class Work:
    """Jobs of a few specs in turn, and the expected result of each."""

    def __init__(self, stack: FaultStack, bodies: list[dict[str, Any]]) -> None:
        self._stack = stack
        self._bodies = bodies
        self._undisturbed = [stack.undisturbed(body) for body in bodies]
        self.expected: dict[str, Undisturbed | None] = {}

    def submit(self) -> None:
        turn = len(self.expected) % len(self._bodies)
        self.expected[self._stack.submit(self._bodies[turn])] = self._undisturbed[turn]

    def ensure_open_job(self) -> None:
        """Submit a job if all have ended."""
        params = {"state": _OPEN, "limit": 1}
        if not self._stack.request("GET", "/v1/jobs", params=params).json()["data"]:
            self.submit()


def _kill_many(
    stack: FaultStack, rng: random.Random, kills: int, mean_gap: float, work: Work
) -> Counter[str]:
    """How many processes of each kind were killed."""
    killed: Counter[str] = Counter()
    while killed.total() < kills:
        time.sleep(rng.expovariate(1 / mean_gap))
        stack.revive()
        work.ensure_open_job()
        kind = rng.choices(_KINDS, _WEIGHTS)[0]
        victim = kill_one(stack, kind, rng)
        if victim is not None:
            killed[kind] += 1
            # The full attack takes long; if it is interrupted, its progress is known.
            sys.stderr.write(f"SIGKILL {killed.total()} of {kills}: {kind} {victim}\n")
    return killed


def kill_one(stack: FaultStack, kind: str, rng: random.Random) -> int | None:
    """Kill a process of the kind; its pid, or None if there was none or it had just ended."""
    victim = _find(stack, kind, rng)
    if victim is not None:
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            return None
    return victim


def _find(stack: FaultStack, kind: str, rng: random.Random) -> int | None:
    """Wait a while for a process of the kind; None if there is none."""
    # Helpers, such as fork servers and uploads, run only some of the time.
    deadline = time.monotonic() + (0.5 if kind == "helper" else _SEARCH_SECONDS)
    while time.monotonic() < deadline:
        candidates = _candidates(stack, kind)
        if candidates:
            return rng.choice(candidates)
        stack.revive()
        time.sleep(0.05)
    return None


def _candidates(stack: FaultStack, kind: str) -> list[int]:
    workers = [stack.parts[name] for name in stack.workers]
    match kind:
        case "stage":
            return [process.pid for part in workers for process in stages(part)]
        case "supervisor":
            return [process.pid for part in workers for process in supervisors(part)]
        case "helper":
            return [process.pid for part in workers for process in helpers(part)]
        case "worker":
            return [part.process.pid for part in workers if _is_alive(part)]
        case _:
            # Of reconcilers there may be several, such as `reconciler-2`.
            parts = [part for name, part in stack.parts.items() if name.startswith(kind)]
            return [part.process.pid for part in parts if _is_alive(part)]


def _is_alive(part: Part) -> bool:
    return part.process.poll() is None
