"""`training.resume_from`: another job's checkpoint is restored whole, and then this job's own plan
holds."""

from pathlib import Path

from service.contract.failures import FailureCode, StageError
from worker.training import early_stopping
from worker.training.checkpointing import state as checkpoint
from worker.training.checkpointing.state import State
from worker.training.plan import Plan


def restore(state: State, plan: Plan, folder: Path) -> Plan:
    """Continue from `folder` by `plan`, which may be longer or shorter than the other job's.

    The best and the newest checkpoint are not in this job's folder, so it has neither yet; the best
    evaluation so far stays known. StageError: checkpoint_unreadable, or invalid_option when nothing
    is left to train.
    """
    _require_same_precision(plan, folder)
    plan = checkpoint.restore(state, plan, folder, same_length=False)
    _require_steps_left(state, plan)
    progress = state.progress
    progress.last_checkpoint = progress.best_checkpoint = progress.best_checkpoint_metric = None
    state.scheduler.follow_plan()
    return plan


def _require_same_precision(plan: Plan, folder: Path) -> None:
    """Loss scaling, and the numbers of a step, depend on it."""
    theirs, ours = checkpoint.precision_of(folder) or "fp32", plan.spec.precision
    if theirs != ours:
        raise _invalid(
            "training.precision",
            f"is `{ours}`, but the checkpoint of `training.resume_from` was computed in "
            f"`{theirs}`: give that, or `auto`",
        )


def _require_steps_left(state: State, plan: Plan) -> None:
    progress = state.progress
    if progress.step >= plan.total_steps:
        raise _invalid(
            "training.resume_from",
            f"names the checkpoint of step {progress.step}, and this job has {plan.total_steps} "
            "steps in all: raise `num_train_epochs` or `max_steps`, or choose an earlier "
            "checkpoint",
        )
    if early_stopping.reached(plan.spec, progress) and not progress.is_unjudged:
        raise _invalid(
            "training.resume_from",
            f"names a checkpoint after {progress.evaluations_without_gain} evaluations without "
            "improvement: raise `early_stopping_patience`, or choose an earlier checkpoint",
        )


def _invalid(option: str, what: str) -> StageError:
    return StageError(FailureCode.INVALID_OPTION, f"`{option}` {what}", option=option)
