"""`training.resume_from`: continue another job's checkpoint by this job's own plan."""

from pathlib import Path

from worker.failures import invalid_option
from worker.training.checkpointing import state as checkpoint
from worker.training.checkpointing.state import State
from worker.training.evaluation import early_stopping
from worker.training.plan import Plan


def restore(state: State, plan: Plan, folder: Path) -> None:
    """Continue from `folder` by `plan`, which may be longer or shorter than the other job's.

    The other job's best and latest checkpoints are not in this job's folder, so both are forgotten;
    the best evaluation so far is kept. StageError: checkpoint_unreadable, or invalid_option when
    nothing is left to train.
    """
    _require_same_precision(plan, folder)
    checkpoint.restore(state, plan, folder, same_length=False)
    _require_steps_left(state)
    progress = state.progress
    progress.last_checkpoint = progress.best_checkpoint = progress.best_checkpoint_metric = None
    state.scheduler.follow_plan()


def _require_same_precision(plan: Plan, folder: Path) -> None:
    """Loss scaling and the numbers of a step depend on it."""
    theirs, ours = checkpoint.read_progress(folder)["precision"], plan.spec.precision
    if theirs != ours:
        raise invalid_option(
            "training.precision",
            f"is `{ours}`, but the checkpoint of `training.resume_from` was trained in `{theirs}`: "
            "use that, or `auto`",
        )


def _require_steps_left(state: State) -> None:
    plan, progress = state.plan, state.progress
    if progress.step >= plan.total_steps:
        raise invalid_option(
            "training.resume_from",
            f"names the checkpoint of step {progress.step}, but this job has only "
            f"{plan.total_steps} steps: raise `num_train_epochs` or `max_steps`, or choose an "
            "earlier checkpoint",
        )
    if early_stopping.reached(plan.spec, progress) and not progress.evaluation_pending:
        raise invalid_option(
            "training.resume_from",
            f"names a checkpoint after {progress.evaluations_without_gain} evaluations without "
            "improvement: raise `early_stopping_patience`, or choose an earlier checkpoint",
        )
