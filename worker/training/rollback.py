"""Numbers that are not finite, and `on_non_finite: rollback`: return to the latest checkpoint and
continue with a lower learning rate.

Everything follows from the checkpoint: a job that is killed in between, and resumes from that
checkpoint, meets the same number and takes the same way.
"""

from typing import Final, NamedTuple

from service.contract.failures import FailureCode, StageError
from worker.training.checkpointing.state import State
from worker.training.run import TrainingRun

LOWEST_LOSS_SCALE: Final = 1.0
"""As in DeepSpeed. A model whose gradients always overflow would otherwise end untrained."""


class NonFinite(NamedTuple):
    """A number that must not be kept."""

    step: int
    what: str


def in_loss(state: State) -> NonFinite | None:
    """In the losses and gradients of all processes so far. Waits for the device."""
    step = state.tally.first_bad_step()
    if step is not None:
        return NonFinite(step, "the loss or its gradient")
    scaler = state.accelerator.scaler
    # Each skipped step halves the scale; so low a scale is not the search for the right one.
    if scaler is not None and scaler.get_scale() < LOWEST_LOSS_SCALE:
        what = f"the gradient in float16, with the loss scaled by less than {LOWEST_LOSS_SCALE:g},"
        return NonFinite(state.progress.step, what)
    return None


def in_weights(state: State) -> NonFinite | None:
    """In the weights of any process: an update can overflow although its loss was finite."""
    bad = int(not state.strategy.has_finite_weights())
    if state.ranks.all_reduce_sum(bad) == [0]:
        return None
    return NonFinite(state.progress.step, "a weight after the update")


def roll_back(run: TrainingRun, found: NonFinite) -> None:
    """Restore the latest checkpoint and lower its learning rates.

    StageError(non_finite_loss) when the job does not ask for it, when it was done as often as
    allowed, or when there is no checkpoint.
    """
    run.saver.finish(run.state.ranks)
    spec, progress = run.plan.spec, run.state.progress
    checkpoint, times = progress.last_checkpoint, progress.rollbacks + 1
    if spec.on_non_finite == "fail" or times > spec.non_finite_rollbacks or checkpoint is None:
        raise _failure(run.state, found)
    reported_until = max(progress.step, progress.remade_until)
    run.resume(run.workspace / checkpoint)
    run.reporter.start()
    progress.remade_until = reported_until
    # The checkpoint does not know of the rollbacks to itself, and lacks their factors.
    factor = spec.rollback_learning_rate_factor ** (times - progress.rollbacks)
    run.state.scheduler.scale(factor)
    progress.rollbacks = times
    run.reporter.notice(
        f"{found.what} was not finite at step {found.step}: returned to the checkpoint of step "
        f"{progress.step}, with the learning rate times {factor:g} from here on; rollback {times} "
        f"of {spec.non_finite_rollbacks}",
        step=found.step,
        restored_step=progress.step,
        learning_rate_factor=factor,
        rollbacks=times,
    )


def _failure(state: State, found: NonFinite) -> StageError:
    checkpoint, rollbacks = state.progress.last_checkpoint, state.progress.rollbacks
    after = f", after {rollbacks} rollbacks" if rollbacks else ""
    last_good = "there is no checkpoint yet"
    if checkpoint is not None:
        last_good = f"the last good checkpoint is {checkpoint}"
    return StageError(
        FailureCode.NON_FINITE_LOSS,
        f"{found.what} was not finite at step {found.step}{after}; {last_good}",
        step=found.step,
        last_good_checkpoint=checkpoint,
    )
