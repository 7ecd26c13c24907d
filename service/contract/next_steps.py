"""What the user of a failed attempt should do, once it is known what follows."""

import re
from typing import Final

from service.contract.failures import RULES, Failure, FailureCode

_JOB: Final = re.compile(r"(?<=`)(finetune \w+ )JOB\b")


def addressed(failure: Failure, job_id: str) -> Failure:
    """`failure` with the job's id in the commands of its action."""
    return _with_action(failure, _JOB.sub(rf"\g<1>{job_id}", failure.action))


def retrying(failure: Failure, wait_seconds: float) -> Failure:
    """The attempt is repeated after so long without the user."""
    action = RULES[failure.code].while_retrying
    wait = f"Retrying in {_duration(wait_seconds)}. " if wait_seconds else ""
    return _with_action(failure, f"{wait}{action}")


def waiting(failure: Failure) -> Failure:
    """The host lacks what the attempt needs: the next one begins once it has enough."""
    return _with_action(failure, RULES[failure.code].while_retrying)


def paused(failure: Failure) -> Failure:
    """The attempt would be repeated, but the user has paused the job meanwhile."""
    action = RULES[failure.code].while_retrying
    return _with_action(failure, f"Paused on request: `finetune resume JOB` tries again. {action}")


def final(failure: Failure, attempts: int, *, has_model: bool) -> Failure:
    """Nothing happens unless the user does something. `has_model`: only the push failed."""
    gave_up = RULES[failure.code].retryable and attempts > 1
    sentences = [
        *([f"Gave up after {attempts} attempts."] if gave_up else []),
        failure.action,
        *(["The model is kept."] if has_model else []),
    ]
    return _with_action(failure, " ".join(sentences))


def crash_limit(last: Failure, crashes: int, stage: str) -> Failure:
    """The end after this many crashes in a row; the last one says what to do."""
    return Failure.from_code(
        FailureCode.CRASH_LIMIT,
        f"{crashes} attempts in a row at {stage} ended without any progress. "
        f"The last: {last.message}",
        action=f"Gave up after {crashes} attempts. {last.action}",
        last=last.code,
    )


def _with_action(failure: Failure, action: str) -> Failure:
    return failure.model_copy(update={"action": action})


def _duration(seconds: float) -> str:
    return f"{round(seconds)} s" if seconds < 120 else f"{seconds / 60:.3g} min"
