"""Detects when the failures of trials mean that the whole search cannot succeed."""

from typing import Any, Final

from service.contract.failures import RULES, Failure, FailureCode
from service.contract.search.states import TrialState
from service.contract.states import Stage
from service.searches.memory import Memory
from service.searches.plan import Plan
from service.store.searches.trials import Facts

_SAME_FAILURES: Final = 3
"""Failed trials in a row, from the first one on, that end the search."""
_OF_TRAINING: Final = ("training.", "peft.")
"""Sections that do not change how data is prepared."""


def shared_failure(memory: Memory, facts: Facts, plan: Plan) -> Failure | None:
    """The failure of the whole search, if what failed in this pass decides it."""
    failed = [
        (number, columns["failure"])
        for number, columns in plan.trials.items()
        if columns.get("state") is TrialState.FAILED
    ]
    if not failed:
        return None
    number, failure = failed[0]
    if memory.spec.on_failure == "stop":
        reason = plan.trials[number].get("reason") or "its job failed"
        return _as_failure(failure, f"Trial {number} failed, and `on_failure` is `stop`: {reason}")
    return _of_preparing(memory, facts, failed) or _of_first_trials(memory, failed)


def _of_preparing(
    memory: Memory, facts: Facts, failed: list[tuple[int, dict[str, Any] | None]]
) -> Failure | None:
    """Every trial prepares the same data, and would fail the same way."""
    if any(not path.startswith(_OF_TRAINING) for path in memory.spec.dimensions):
        return None
    for number, failure in failed:
        job = facts.jobs.get(number)
        if failure is None or job is None or job.stage != Stage.PREPARE:
            continue
        if not RULES[FailureCode(failure["code"])].retryable:
            return _as_failure(
                failure, f"No trial can be prepared. Trial {number}: {failure['message']}"
            )
    return None


def _of_first_trials(
    memory: Memory, failed: list[tuple[int, dict[str, Any] | None]]
) -> Failure | None:
    codes = memory.failure_codes
    codes.update({number: failure["code"] for number, failure in failed if failure is not None})
    ended = [trial for trial in memory.trials if trial.is_over]
    if len(ended) < _SAME_FAILURES or any(trial.state is not TrialState.FAILED for trial in ended):
        return None
    if len(codes) != len(ended) or len(set(codes.values())) != 1:
        return None
    number, failure = failed[-1]
    assert failure is not None  # or its code would be missing
    how = f"The first {len(ended)} trials failed the same way. Trial {number}"
    return _as_failure(failure, f"{how}: {failure['message']}")


def _as_failure(failure: dict[str, Any] | None, message: str) -> Failure:
    if failure is None:
        return Failure.from_code(
            FailureCode.INVALID_OPTION,
            message,
            action="See why with `finetune search trials`, change the spec, and submit it again.",
        )
    return Failure.model_validate(failure).model_copy(update={"message": message})
