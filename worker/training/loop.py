"""THE training loop. It knows no task, no MLflow and no Hub.

A step is: fetch the batches of one accumulation, backward each of them scaled by the items of all
of them, clip, update, schedule. Losses stay on the device until a number is due.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import torch
from accelerate.utils.memory import clear_device_cache

from service.contract.events import CheckpointSaved
from service.contract.failures import FailureCode, StageError
from service.contract.states import Phase
from worker import checkpoints
from worker.training import batch_size, checkpoint, early_stopping
from worker.training.checkpoint import State
from worker.training.evaluation import on_device
from worker.training.loading import Loader, chunks
from worker.training.memory import BatchInHand, out_of_memory_explained
from worker.training.objective import Batch, Objective
from worker.training.plan import Plan
from worker.training.progress import BestMetric
from worker.training.reporting import Reporter
from worker.training.smoothing import LossSum


@dataclass
class Training:
    """The parts of one run, wired by the stage."""

    plan: Plan
    state: State
    objective: Objective
    loss_sum: LossSum
    """The objective's own, unless labels are smoothed."""
    order: Callable[[int], Sequence[int]]
    """Epoch → indices of the training features; a pure function."""
    loader: Loader
    """Of the training features."""
    evaluate: Callable[[], dict[str, float]]
    """Metrics of the validation split under names with `eval_`."""
    best: BestMetric
    reporter: Reporter
    workspace: Path
    checkpoints_dir: Path
    in_hand: BatchInHand = field(default_factory=BatchInHand)

    @property
    def ended(self) -> bool:
        progress, plan = self.state.progress, self.plan
        return progress.step == plan.total_steps or early_stopping.reached(plan.spec, progress)

    def resume(self, folder: Path) -> None:
        """Continue from a checkpoint. StageError(checkpoint_unreadable)."""
        self.plan = self.reporter.plan = checkpoint.restore(self.state, self.plan, folder)

    def take_smaller_batches(self, plan: Plan) -> None:
        """Go on by `plan`, which differs from the present one in the size of batches alone."""
        spec = plan.spec
        self.plan = self.reporter.plan = plan
        self.state.progress.batch_size = spec.per_device_train_batch_size
        self.state.optimizer.zero_grad()
        self.reporter.notice(
            f"Out of memory at step {self.state.progress.step + 1}: batches of "
            f"{spec.per_device_train_batch_size} from here on, {spec.gradient_accumulation_steps} "
            "of them for each optimizer step, which stays the same",
            per_device_train_batch_size=spec.per_device_train_batch_size,
            gradient_accumulation_steps=spec.gradient_accumulation_steps,
        )


def train(run: Training) -> None:
    """Make the optimizer steps that are left, with what is due after each.

    Raises StageError: non_finite_loss, out_of_memory, disk_full, invalid_option (an unknown
    `metric_for_best_model`).
    """
    run.state.model.train()
    run.reporter.start()
    while not run.ended:
        with batch_size.again_when_shrunk():
            _rest_of_epoch(run)
    run.reporter.stop()


def _rest_of_epoch(run: Training) -> None:
    progress = run.state.progress
    for window in _windows(run, *run.plan.cursor(progress.step)):
        learning_rate = run.state.scheduler.learning_rate()
        grad_norm = _optimizer_step(run, window)
        due, last = run.plan.due(progress.step), progress.step == run.plan.total_steps
        if due.log or due.evaluate or due.save or last:
            _require_finite(run)
        if due.log:
            _log(run, grad_norm, learning_rate)
        run.reporter.tick(now=last)
        metric = _evaluate(run) if due.evaluate else None
        is_best = progress.best_step == progress.step
        if due.save or (is_best and run.plan.spec.save_strategy == "best"):
            _save(run, metric)
        if run.ended:
            break


def _windows(run: Training, epoch: int, first_batch: int) -> Iterator[list[Batch]]:
    """The batches of each optimizer step of an epoch, from `first_batch` on, on the CPU."""
    spec = run.plan.spec
    examples = run.order(epoch)[: run.plan.examples]
    batches = chunks(examples, spec.per_device_train_batch_size)
    loaded = run.loader.over(batches[first_batch:], epoch)
    while window := list(islice(loaded, spec.gradient_accumulation_steps)):
        yield window


def _optimizer_step(run: Training, window: list[Batch]) -> torch.Tensor:
    """Train on one accumulated batch; its gradient norm before clipping, on the device."""
    state, spec = run.state, run.plan.spec
    explained = out_of_memory_explained(run.in_hand, "training.per_device_train_batch_size")
    with batch_size.shrinking(run.plan, run.take_smaller_batches), explained:
        loss = _backward(run, window)
    explained = out_of_memory_explained(run.in_hand, "training.per_device_train_batch_size")
    with explained:
        # As in Trainer the norm is wanted even where nothing is clipped.
        norm: torch.Tensor = state.accelerator.clip_grad_norm_(
            state.model.parameters(), spec.max_grad_norm or float("inf")
        )
        state.optimizer.step()
    # fp16: a step with an overflow is left out, and so is its move of the schedule.
    if not state.accelerator.optimizer_step_was_skipped:
        state.scheduler.after_step()
    state.optimizer.zero_grad()
    state.progress.step += 1
    finite = loss.isfinite()
    if state.accelerator.scaler is None:
        finite &= norm.isfinite()
    state.tally.add(state.progress.step, loss, finite)
    for batch in window:
        run.reporter.count(*_size(batch))
    if spec.torch_empty_cache_steps and state.progress.step % spec.torch_empty_cache_steps == 0:
        clear_device_cache()
    return norm


def _backward(run: Training, window: list[Batch]) -> torch.Tensor:
    """Add the gradients of one accumulated batch up; its mean loss, on the device."""
    state = run.state
    items = max(sum(run.objective.item_count(batch) for batch in window), 1)
    loss = torch.zeros((), device=state.accelerator.device)
    for batch in window:
        run.in_hand.see(batch)
        part = run.loss_sum(state.model, on_device(batch, state.accelerator)) / items
        state.accelerator.backward(part)
        loss += part.detach()
        run.reporter.tick()
    return loss


def _size(batch: Batch) -> tuple[int, int, int]:
    """Examples, tokens without padding, and tokens with it, of a batch on the CPU."""
    tokens = batch["input_ids"]
    mask = batch.get("attention_mask")
    real = int(mask.sum()) if mask is not None else tokens.numel()
    return tokens.shape[0], real, tokens.numel()


def _log(run: Training, grad_norm: torch.Tensor, learning_rate: float) -> None:
    """Read the losses from the device and report their mean since the last time."""
    progress, tally = run.state.progress, run.state.tally
    total = tally.total()
    tally.reset()
    progress.logged_loss = total / (progress.step - progress.logged_step)
    progress.loss_total += total
    progress.logged_step = progress.step
    run.reporter.log(
        {
            "loss": progress.logged_loss,
            "grad_norm": float(grad_norm.item()),
            "learning_rate": learning_rate,
        }
    )


def _evaluate(run: Training) -> float | None:
    """Evaluate and report; the value of the metric that the best model is chosen by."""
    with run.reporter.pausing_for(Phase.EVALUATING):
        metrics = run.evaluate()
    run.reporter.evaluated(metrics)
    value = run.best.of(metrics)
    if value is not None:
        _judge(run, value)
    return value


def _judge(run: Training, value: float) -> None:
    """Draw the conclusions of an evaluation: best model, early stopping, learning rate."""
    progress, spec = run.state.progress, run.plan.spec
    early_stopping.observe(spec, run.best, progress, value)
    if run.best.improves(progress, value):
        progress.best_metric, progress.best_step = value, progress.step
    run.state.scheduler.after_evaluation(value)
    if early_stopping.reached(spec, progress):
        run.reporter.notice(
            f"Stopped early at step {progress.step}: `{run.best.name}` has not improved in "
            f"{progress.evaluations_without_gain} evaluations"
        )


def _save(run: Training, metric: float | None) -> None:
    """Write a checkpoint of this step and announce it."""
    _require_finite_weights(run)
    progress = run.state.progress
    folder = run.checkpoints_dir / str(progress.step)
    progress.last_checkpoint = str(folder.relative_to(run.workspace))
    is_best = progress.best_step == progress.step
    if is_best:
        progress.best_checkpoint = progress.last_checkpoint
    with run.reporter.pausing_for(Phase.SAVING):
        checkpoint.save(run.state, run.plan, folder)
    run.reporter.send(
        CheckpointSaved(
            step=progress.step,
            path=progress.last_checkpoint,
            bytes=checkpoints.total_bytes(folder),
            manifest_sha256=checkpoints.manifest_sha256(folder),
            metric=metric,
            best=is_best,
        )
    )


def _require_finite(run: Training) -> None:
    bad_step = run.state.tally.first_bad_step()
    if bad_step is not None:
        raise _non_finite(run, bad_step, "the loss or its gradient")


def _require_finite_weights(run: Training) -> None:
    """An update can overflow although its loss did not: such weights must not be kept."""
    finite = torch.stack([value.isfinite().all() for value in run.state.model.parameters()])
    if not bool(finite.all().item()):
        raise _non_finite(run, run.state.progress.step, "a weight after the update")


def _non_finite(run: Training, step: int, what: str) -> StageError:
    good = run.state.progress.last_checkpoint
    return StageError(
        FailureCode.NON_FINITE_LOSS,
        f"{what} was not finite at step {step}; "
        + (f"the last good checkpoint is {good}" if good else "there is no checkpoint yet"),
        step=step,
        last_good_checkpoint=good,
    )
