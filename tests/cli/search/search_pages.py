"""A search's page and its trials as the API answers with them, for tests of how they look."""

from typing import Any

from service.cli.search.snapshots import Snapshot

PATHS = ("training.learning_rate", "training.warmup_steps")


def make_search(**changes: Any) -> dict[str, Any]:
    return {
        "id": "search-18a3f2c41b0" + "0" * 21,
        "name": "squad",
        "task": "question-answering",
        "state": "running",
        "max_trials": 20,
        "trials": {"running": 1, "paused": 1, "complete": 2, "pruned": 1, "failed": 1},
        "best": [{"trial": 1, "scores": [81.25]}],
        "waiting": None,
        "failure": None,
        "actions": ["pause", "cancel", "extend"],
        "mlflow_url": None,
        "created_at": "2026-01-01T12:00:00Z",
        "started_at": "2026-01-01T12:00:00Z",
        "ended_at": None,
        "objectives": [{"metric": "eval_f1", "direction": "maximize"}],
        "outcome": None,
        "spec": {
            "space": {
                PATHS[0]: {"low": 1e-6, "high": 1e-3, "log": True},
                PATHS[1]: {"choices": [0, 0.1]},
            },
            "sampler": {"name": "tpe", "seed": 0},
            "pruner": {"name": "asha", "rungs": [100, 300], "unit": "steps"},
            "max_parallel": 2,
            "timeout_seconds": None,
        },
        **changes,
    }


def make_trial(number: int = 0, **changes: Any) -> dict[str, Any]:
    return {
        "trial": number,
        "job_id": f"job-18a3f2c4{number:03}" + "0" * 21,
        "origin": "sampled",
        "state": "complete",
        "values": {PATHS[0]: 3e-5, PATHS[1]: 0.1},
        "scores": [80.5],
        "score_step": 300,
        "reason": None,
        "failure": None,
        "reports": [make_report(100, 70.5), make_report(300, 80.5)],
        "job_state": "succeeded",
        "progress": {"step": 300, "of": 300, "percent": 100.0},
        "created_at": "2026-01-01T12:00:00Z",
        "ended_at": "2026-01-01T12:01:00Z",
        **changes,
    }


def make_report(resource: int, value: float, decision: str = "continue") -> dict[str, Any]:
    at = "2026-01-01T12:00:30Z"
    return {"resource": resource, "step": resource, "value": value, "decision": decision, "at": at}


UNFINISHED: dict[str, Any] = {"scores": None, "ended_at": None}


def make_trials() -> list[dict[str, Any]]:
    """One in each state that a search in the middle has."""
    failure = {"code": "out_of_memory", "message": "The batch does not fit.", "action": "…"}
    return [
        make_trial(
            5,
            state="running",
            job_state="running",
            progress={"step": 57, "of": 300, "percent": 19.0},
            reports=[],
            **UNFINISHED,
        ),
        make_trial(
            4,
            state="paused",
            job_state="paused",
            progress={"step": 100, "of": 300, "percent": 33.3},
            reports=[make_report(100, 69.25, "pause")],
            **UNFINISHED,
        ),
        make_trial(1, scores=[81.25], values={PATHS[0]: 4.5e-5, PATHS[1]: 0}),
        make_trial(
            3,
            state="pruned",
            scores=None,
            job_state="cancelled",
            reports=[make_report(100, 70.5, "prune")],
            reason="Below the median at 100.",
        ),
        make_trial(2, state="failed", scores=None, job_state="failed", reports=[], failure=failure),
        make_trial(0),
    ]


def make_snapshot(**changes: Any) -> Snapshot:
    """`changes`: of the search."""
    trials = make_trials()
    best = [trial for trial in trials if trial["trial"] == 1]
    durations = {0: 60.0, 1: 60.0, 2: 60.0, 3: 60.0}
    return Snapshot(make_search(**changes), trials, best, durations)
