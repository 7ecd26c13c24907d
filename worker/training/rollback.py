"""`on_non_finite: rollback`: back to the newest checkpoint, and on with a lower learning rate.

All of it follows from the checkpoint, so that a job which is killed in between, and goes on from
that checkpoint, meets the same number again and goes the same way.
"""

from collections.abc import Callable

from service.contract.failures import FailureCode, StageError
from service.contract.training import TrainingSpec
from worker.training.checkpointing.state import State
from worker.training.reporting import Reporter


class NonFiniteError(StageError):
    """A number that must not be kept; `state` tells where the training could go on from."""

    def __init__(self, state: State, step: int, what: str) -> None:
        good = state.progress.last_checkpoint
        self.what = f"{what} was not finite at step {step}"
        times = state.progress.rollbacks
        after = f", after {times} rollbacks" if times else ""
        where = f"the last good checkpoint is {good}" if good else "there is no checkpoint yet"
        super().__init__(
            FailureCode.NON_FINITE_LOSS,
            f"{self.what}{after}; {where}",
            step=step,
            last_good_checkpoint=good,
        )


def roll_back(
    error: NonFiniteError,
    spec: TrainingSpec,
    state: State,
    reporter: Reporter,
    restore: Callable[[], None],
) -> None:
    """Restore the newest checkpoint by `restore` and lower its learning rates.

    Raises `error` when that is not asked for, or was done as often as allowed.
    """
    progress = state.progress
    times = progress.rollbacks + 1
    if spec.on_non_finite == "fail" or times > spec.non_finite_rollbacks:
        raise error
    told_until = max(progress.step, progress.remade_until)
    restore()
    progress.remade_until = told_until
    # Rollbacks that the checkpoint does not know of were to this one.
    factor = spec.rollback_learning_rate_factor ** (times - progress.rollbacks)
    state.scheduler.scale(factor)
    progress.rollbacks = times
    reporter.notice(
        f"{error.what}: back to the checkpoint of step {progress.step}, and on with the learning "
        f"rate times {factor:g}; rollback {times} of {spec.non_finite_rollbacks}",
        step=error.failure.details["step"],
        restored_step=progress.step,
        learning_rate_factor=factor,
        rollbacks=times,
    )
