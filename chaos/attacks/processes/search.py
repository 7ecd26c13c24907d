"""SIGKILL of reconcilers, workers and the API during searches with ASHA."""

import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, cycle
from typing import Any, Final

from chaos.attacks.processes.kills import kill_one
from chaos.attacks.processes.search_users import Plan, Users, UserSearch
from chaos.checks import checker, search_checker, search_runs
from chaos.checks.search_checker import Outcome, SearchRecord
from chaos.rows import Report, Row, Scale, timed
from chaos.stack.fault_stack import FaultStack, running
from tests.e2e.stack import ENDED

HOLDS: Final = (
    "one trial at a time: trials, reports, decisions, best and weights are the undisturbed "
    "search's; several at a time: each decision follows from the reports before it; MLflow holds "
    "each number once; nothing of an ended search runs, nothing of its losers is left"
)
_KINDS: Final = ("reconciler", "api", "supervisor", "worker", "stage")
_WEIGHTS: Final = (4, 2, 2, 2, 2)
_MEAN_GAP: Final = 1.5
"""Seconds between two kills."""
_REAL: Final = "real trainings"
_END_SECONDS: Final = 300.0
"""Of each search, on a machine with other work."""
_CLEAN_SECONDS: Final = 240.0


def run(seed: int, scale: Scale) -> Row:
    kills, searches = scale.pick(short=(8, 2), full=(200, 20))
    rng = random.Random(seed)
    with (
        timed("SIGKILL during searches", HOLDS) as report,
        running(
            workers=2,
            reconcilers=2,
            database=scale.pick(short="sqlite", full="postgres"),
            mlflow=True,
            stubs=True,
            variables={"FINETUNE_RETENTION_SWEEP_SECONDS": "5"},
        ) as stack,
    ):
        plans = _plans(seed, scale)
        real = scale.pick(short=[], full=[_real_plan(stack, seed)])
        undisturbed = _undisturbed(stack, [*real, *plans])
        in_turn = chain(real, cycle(plans))
        users = Users(stack.url, seed, in_turn, searches, scale.pick(short=2, full=4))
        with users.working():
            per_search = kills // searches
            killed = _kill_many(stack, rng, kills, per_search, users)
        stack.wait(lambda: users.are_done, _END_SECONDS, "the users' last request")
        _await_ends(stack, users.submitted)
        report.faults += users.faults
        _check(stack, report, users, undisturbed)
        _summarize(report, killed, users, seed)
    return report.row()


# ---- the searches ------------------------------------------------------------------------------


def _plans(seed: int, scale: Scale) -> list[Plan]:
    if scale is Scale.SHORT:
        return [
            Plan("strict 0", _small("random", seed), ("pause",)),
            Plan("parallel 0", _small("random", seed, max_parallel=2)),
        ]
    strict = [
        Plan(f"strict {n}", _body(("tpe", "random")[n % 2], seed + n), actions)
        for n, actions in enumerate([(), ("pause",), ("pause",), ()])
    ]
    parallel = [
        Plan(f"parallel {n}", _body("random", seed + n, max_parallel=3), actions)
        for n, actions in enumerate([("pause",), ("extend",), ("cancel",), ("pause", "extend")])
    ]
    return [plan for pair in zip(strict, parallel, strict=True) for plan in pair]


def _small(sampler: str, seed: int, max_parallel: int = 1) -> dict[str, Any]:
    given = {"max_trials": 4, "steps": 6, "max_parallel": max_parallel}
    return _body(sampler, seed, rungs=[2], **given)


def _body(
    sampler: str,
    seed: int,
    *,
    max_trials: int = 6,
    max_parallel: int = 1,
    steps: int = 10,
    rungs: Sequence[int] = (2, 4),
) -> dict[str, Any]:
    """A search whose trials are trainings of tests/support/stages/chained.py."""
    learns = {"n_startup_trials": 3} if sampler == "tpe" else {}
    return {
        "name": f"{sampler} {seed}",
        "job": {
            "task": {"type": "causal-lm"},
            "model": {"name_or_path": "org/model"},
            "dataset": {"source": "hub", "name": "squad", "validation": "validation"},
            "training": {
                "seed": seed,
                "max_steps": steps,
                "eval_strategy": "steps",
                "eval_steps": 2,
                "save_strategy": "steps",
                "save_steps": 2,
                "load_best_model_at_end": False,
            },
            "metadata": {"stub.train": "chained", "stub.seconds": "0.15"},
            # An attack's kills are not the job's fault, however many hit the same one.
            "max_retries": 100,
        },
        "space": {"training.learning_rate": {"low": 1e-6, "high": 1e-2, "log": True}},
        "objective": {"metric": "loss"},
        "sampler": {"name": sampler, "seed": seed, **learns},
        "pruner": {"name": "asha", "reduction_factor": 2, "rungs": list(rungs)},
        "max_trials": max_trials,
        "max_parallel": max_parallel,
    }


def _real_plan(stack: FaultStack, seed: int) -> Plan:
    """The trials are real trainings of a small model."""
    every = {"eval_strategy": "steps", "eval_steps": 4, "load_best_model_at_end": False}
    job = stack.material.body(seed=seed, steps=12, **every)
    given = _body("random", seed, max_trials=3, rungs=[4])
    return Plan(_REAL, {**given, "name": "real trainings", "job": job}, ("pause",))


def _is_strict(plan: Plan) -> bool:
    return int(plan.body["max_parallel"]) == 1


def _undisturbed(stack: FaultStack, plans: list[Plan]) -> dict[str, Outcome]:
    """By the plan's name; all at once, before the first kill."""
    ids = {plan.name: _submit(stack, plan) for plan in plans if _is_strict(plan)}
    _await(stack, list(ids.values()))
    found = search_checker.read(stack.database_url, list(ids.values()))
    outcomes = {name: search_checker.outcome(found[search_id]) for name, search_id in ids.items()}
    for name, each in outcomes.items():
        assert each.state == "succeeded", f"{name} undisturbed: {found[ids[name]].row.failure}"
        decisions = Counter(decision for *_, decision in each.reports)
        sys.stderr.write(f"undisturbed {name}: {each.counts}, {dict(decisions)}\n")
    return outcomes


def _submit(stack: FaultStack, plan: Plan) -> str:
    answer = stack.request("POST", "/v1/searches", json=plan.body)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


# ---- the attack --------------------------------------------------------------------------------


def _kill_many(
    stack: FaultStack, rng: random.Random, kills: int, per_search: int, users: Users
) -> Counter[str]:
    """How many processes of each kind were killed; about `per_search` in the time of each."""
    killed: Counter[str] = Counter()
    while killed.total() < kills and not users.faults:
        time.sleep(rng.expovariate(1 / _MEAN_GAP))
        stack.revive()
        if killed.total() >= per_search * len(users.submitted):
            continue  # the first ones must end before there are more
        kind = rng.choices(_KINDS, _WEIGHTS)[0]
        victim = kill_one(stack, kind, rng)
        if victim is not None:
            killed[kind] += 1
            ended = sum(each.has_ended for each in users.submitted)
            sys.stderr.write(
                f"SIGKILL {killed.total()} of {kills}: {kind} {victim}; {ended} of "
                f"{len(users.submitted)} searches have ended\n"
            )
    return killed


def _await_ends(stack: FaultStack, submitted: list[UserSearch]) -> None:
    _await(stack, [each.id for each in submitted])


def _await(stack: FaultStack, search_ids: list[str]) -> None:
    left = list(search_ids)

    def all_ended() -> bool:
        while left and _state(stack, left[0]) in ENDED:
            left.pop(0)
        return not left

    seconds = _END_SECONDS * max(1, len(left))
    stack.wait(all_ended, seconds, f"the end of {len(left)} searches")


def _state(stack: FaultStack, search_id: str) -> str:
    page = stack.request("GET", f"/v1/searches/{search_id}").raise_for_status().json()
    return str(page["state"])


# ---- the result --------------------------------------------------------------------------------


def _check(
    stack: FaultStack, report: Report, users: Users, undisturbed: dict[str, Outcome]
) -> None:
    ids = [each.id for each in users.submitted]
    report.faults += _left_by_losers(stack, ids)
    recorded = search_checker.read(stack.database_url, ids)
    for each in users.submitted:
        wanted = undisturbed.get(each.plan.name)
        found = recorded[each.id]
        report.faults += [
            f"{each.id} ({each.plan.name}): {f}" for f in _faults(each, found, wanted)
        ]
    job_ids = [job_id for found in recorded.values() for job_id in found.jobs]
    report.faults += checker.broken(stack, dict.fromkeys(job_ids))
    for found in recorded.values():
        report.faults += search_runs.faults(stack, found)
    report.faults += checker.left_over(stack)
    trials = [trial for found in recorded.values() for trial in found.trials]
    states = Counter(trial.state for trial in trials)
    reports = sum(len(found.reports) for found in recorded.values())
    report.outcome = (
        f"{len(trials)} trials ({', '.join(f'{n} {state}' for state, n in states.items())}), "
        f"{reports} reports as undisturbed or as replayed"
    )


def _faults(each: UserSearch, found: SearchRecord, undisturbed: Outcome | None) -> Iterator[str]:
    yield from search_checker.faults(
        found, max_trials=each.max_trials, may_be_cancelled=each.is_cancelled
    )
    if found.row.state not in ENDED:
        return
    if each.plan.name != _REAL:
        yield from search_checker.chain_faults(found)
    is_final = not (each.is_extended or each.is_cancelled)
    yield from search_checker.replay_faults(found, are_losers_final=is_final)
    if undisturbed is not None:
        yield from search_checker.differences(search_checker.outcome(found), undisturbed)


def _left_by_losers(stack: FaultStack, search_ids: list[str]) -> list[str]:
    """Checkpoints of pruned trials, which go once MLflow has all that it wants of them."""

    def left() -> list[str]:
        found = search_checker.read(stack.database_url, search_ids)
        return [
            f"{search_id}: {fault}"
            for search_id, each in found.items()
            for fault in search_checker.uncleaned(each, stack.home)
        ]

    try:
        stack.wait(lambda: not left(), _CLEAN_SECONDS, "the removal of checkpoints")
    except TimeoutError:
        return left()
    return []


def _summarize(report: Report, killed: Counter[str], users: Users, seed: int) -> None:
    counts = ", ".join(f"{killed[kind]} {kind}" for kind in _KINDS)
    actions = ", ".join(f"{n} {action}" for action, n in sorted(users.done.items()))
    strict = sum(_is_strict(each.plan) for each in users.submitted)
    report.done = (
        f"{killed.total()} SIGKILLs ({counts}) during {len(users.submitted)} searches, {strict} of "
        f"them with one trial at a time, while users did {actions}; seed {seed}"
    )
