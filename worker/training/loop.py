"""THE training loop. It knows no task, no MLflow and no Hub.

A step is: fetch the batches of one accumulation, backward each of them scaled by the items of all
of them, clip, update, schedule. Losses stay on the device until a number is due.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

import torch
from accelerate.utils.memory import clear_device_cache

from service.contract.events import CheckpointSaved, StageEvent
from service.contract.states import Phase
from worker.storage import atomic_dir
from worker.training import auto_batch_size, best_model, early_stopping, fingerprint, resume_from
from worker.training.batches.dataloader import chunks
from worker.training.batches.rank_shares import Share, Sharing
from worker.training.checkpointing import state as checkpoint
from worker.training.checkpointing.async_saver import Saver
from worker.training.checkpointing.state import State
from worker.training.evaluation import EvaluationLeftError, on_device
from worker.training.label_smoothing import LossSum
from worker.training.memory import TRIM_STEPS, BatchInHand, out_of_memory_explained, trim
from worker.training.objective import Batch, Evaluation, Objective
from worker.training.plan import Plan
from worker.training.progress import BestMetric
from worker.training.reporting import Reporter
from worker.training.rollback import NonFiniteError, roll_back

LOWEST_LOSS_SCALE: Final = 1.0
"""As in DeepSpeed. A model whose gradients always overflow would otherwise end untrained."""


class StoppedEarlyError(Exception):
    """Steps are left, but the training was asked to stop; a checkpoint of this step is written."""


class Totals(NamedTuple):
    """Of one accumulated batch, over all processes."""

    items: int
    examples: int
    tokens: int
    padded_tokens: int
    stop_requests: int


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
    shares: Sharing
    """Of the training features."""
    evaluate: Callable[[], Evaluation]
    """Of the validation split; its metrics have names with `eval_`."""
    best: BestMetric
    reporter: Reporter
    workspace: Path
    checkpoints_dir: Path
    stop_requested: Callable[[], bool] = lambda: False
    """Looked at once after each optimizer step; of several processes before it."""
    in_hand: BatchInHand = field(default_factory=BatchInHand)

    def __post_init__(self) -> None:
        self._first_plan = self.plan
        self.saver = Saver(self.reporter.notice)
        self.stop_agreed = False
        """By several processes, for the end of the step in hand."""

    @property
    def is_stopping(self) -> bool:
        return self.stop_requested() if self.state.ranks.count == 1 else self.stop_agreed

    @property
    def is_saved(self) -> bool:
        """Whether a checkpoint of this very step is written, with all that followed from it."""
        progress = self.state.progress
        newest = progress.last_checkpoint
        return newest is not None and int(Path(newest).name) == progress.step

    @property
    def is_best_to_save(self) -> bool:
        """Whether this step's model was evaluated, and is better than all that were saved."""
        progress = self.state.progress
        metric, saved = progress.metric, progress.best_checkpoint_metric
        return metric is not None and self.best.is_better(metric, saved)

    @property
    def ended(self) -> bool:
        progress, plan = self.state.progress, self.plan
        return progress.step == plan.total_steps or early_stopping.reached(plan.spec, progress)

    def settle(self) -> None:
        """Until a checkpoint that is being written is there, for all processes."""
        if self.saver.is_writing:
            self.reporter.stop()
            self.reporter.phase(Phase.SAVING)
        self.saver.wait()
        self.state.ranks.wait()

    def resume(self, folder: Path) -> None:
        """Continue from a checkpoint. StageError(checkpoint_unreadable)."""
        plan = checkpoint.restore(self.state, self._first_plan, folder)
        best_model.forget_lost(self.state.progress, self.workspace, self.state.ranks)
        self.plan = self.reporter.plan = plan
        self._say_if_moved(folder)

    def resume_other_job(self, folder: Path) -> None:
        """Continue from a checkpoint of another job. StageError: checkpoint_unreadable, or
        invalid_option when it does not go with this job's plan."""
        self.plan = self.reporter.plan = resume_from.restore(self.state, self._first_plan, folder)
        self._say_if_moved(folder)

    def _say_if_moved(self, folder: Path) -> None:
        here = fingerprint.facts(self.state.accelerator.device)
        moved = fingerprint.moved(checkpoint.machine_of(folder), here)
        if moved is not None:
            self.reporter.send(moved)

    def resume_newest(self) -> None:
        """Continue from the checkpoint that was written last. StageError(checkpoint_unreadable)."""
        newest = self.state.progress.last_checkpoint
        assert newest is not None, "with rollbacks there is one before the first step"
        self.resume(self.workspace / newest)
        self.reporter.start()

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
    `metric_for_best_model`); StoppedEarlyError after a checkpoint when `stop_requested` says so.
    """
    try:
        _train(run)
    except BaseException as error:
        run.saver.leave(error)
        raise


def _train(run: Training) -> None:
    run.state.model.train()
    run.reporter.start()
    if run.state.progress.last_checkpoint is None and _is_start_to_save(run):
        _save(run, beside=True)
    while run.state.progress.is_unjudged or not run.ended:
        try:
            auto_batch_size.until_shrunk(partial(_rest_of_epoch, run))
        except NonFiniteError as error:
            run.settle()
            roll_back(error, run.plan.spec, run.state, run.reporter, run.resume_newest)
    run.settle()
    run.reporter.stop()


def _is_start_to_save(run: Training) -> bool:
    """Whether the training may come back to what it begins with: after a rollback, or because
    another job, which it continues, has evaluated that, and no later model may be better."""
    spec = run.plan.spec
    return spec.on_non_finite == "rollback" or (spec.saves_each_best and run.is_best_to_save)


def _rest_of_epoch(run: Training) -> None:
    progress = run.state.progress
    if progress.is_unjudged:
        _conclude(run)
        return
    for window in _windows(run, *run.plan.cursor(progress.step)):
        grad_norm, learning_rate = _optimizer_step(run, window)
        run.saver.look()
        due, last = run.plan.due(progress.step), progress.step == run.plan.total_steps
        stopping = run.is_stopping
        if due.log or due.evaluate or due.save or last or stopping:
            _require_finite(run)
        if due.log:
            _log(run, grad_norm, learning_rate)
        run.reporter.tick(now=last or stopping)
        if stopping:
            _stop(run)
        _conclude(run)
        if run.ended:
            break


def _conclude(run: Training) -> None:
    """What is due after the numbers of a step: its evaluation and its checkpoint."""
    progress = run.state.progress
    due = run.plan.due(progress.step)
    try:
        if due.evaluate:
            _evaluate(run)
    except EvaluationLeftError:
        _stop(run)
    progress.is_unjudged = False
    if due.save or (run.plan.spec.saves_each_best and run.is_best_to_save):
        # After the last step there is nothing to do meanwhile.
        _save(run, beside=not run.ended)


def _stop(run: Training) -> NoReturn:
    """Write this step's checkpoint; an evaluation that is due is the resumed training's first."""
    run.state.progress.is_unjudged = run.plan.due(run.state.progress.step).evaluate
    _save(run, beside=False)
    raise StoppedEarlyError


def _windows(run: Training, epoch: int, first_batch: int) -> Iterator[list[Share]]:
    """This process's part of each optimizer step of an epoch, from batch `first_batch` on."""
    examples = run.order(epoch)[: run.plan.examples]
    batches = chunks(examples, run.plan.batch_size)
    shares = run.shares.over(batches[first_batch:], epoch)
    while window := list(islice(shares, run.plan.spec.gradient_accumulation_steps)):
        yield window


def _optimizer_step(run: Training, window: list[Share]) -> tuple[torch.Tensor, float]:
    """Train on one accumulated batch; its gradient norm before clipping, on the device, and the
    learning rate."""
    state, spec = run.state, run.plan.spec
    totals = _totals(run, window)
    run.stop_agreed = totals.stop_requests > 0
    explained = out_of_memory_explained(run.in_hand, "training.per_device_train_batch_size")
    with auto_batch_size.shrinking(run.plan, run.take_smaller_batches), explained:
        loss = _backward(run, window, totals.items)
    explained = out_of_memory_explained(run.in_hand, "training.per_device_train_batch_size")
    with explained:
        # Not before: in float16 it waits for the outcome of the step before this one.
        learning_rate = state.scheduler.learning_rate()
        # As in Trainer the norm is wanted even where nothing is clipped.
        norm = state.strategy.step(spec.max_grad_norm or float("inf"))
    state.scheduler.after_step(state.skipped.last() if state.skipped is not None else None)
    state.progress.step += 1
    state.progress.metric = None
    finite = loss.isfinite()
    if state.accelerator.scaler is None:
        finite &= norm.isfinite()
    state.tally.add(state.progress.step, loss, finite)
    run.reporter.count(totals.examples, totals.tokens, totals.padded_tokens)
    if spec.torch_empty_cache_steps and state.progress.step % spec.torch_empty_cache_steps == 0:
        clear_device_cache()
    if state.progress.step % TRIM_STEPS == 0:
        trim()
    return norm, learning_rate


def _totals(run: Training, window: list[Share]) -> Totals:
    """Count the step's batches, over all processes, before any of them is computed on."""
    counted = [(run.objective.item_count(b), *_size(b)) for b, is_own in window if is_own]
    own = [sum(values) for values in zip(*counted, strict=True)] or [0, 0, 0, 0]
    return Totals(*run.state.ranks.sums(*own, int(run.stop_requested())))


def _backward(run: Training, window: list[Share], items: int) -> torch.Tensor:
    """Add the gradients of one accumulated batch up; this process's share of its mean loss, on
    the device. The last backward pass leaves the gradient of all processes with each of them."""
    state, processes = run.state, run.state.ranks.count
    loss = torch.zeros((), device=state.accelerator.device)
    for number, (batch, is_own) in enumerate(window, start=1):
        run.in_hand.see(batch)
        last = number == len(window)
        # Around the forward pass, too: it is there that DDP decides.
        with state.strategy.accumulating(last=last):
            part = run.loss_sum(state.model, on_device(batch, state.accelerator)) / max(items, 1)
            part = part if is_own else part * 0
            # Gradients are averaged over the processes, and here their sum is wanted.
            state.strategy.backward(part * processes)
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


def _evaluate(run: Training) -> None:
    """Evaluate, report, and draw the conclusions."""
    with run.reporter.pausing_for(Phase.EVALUATING):
        found = run.evaluate()
    run.reporter.evaluated(found)
    run.state.progress.metric = value = run.best.of(found.metrics)
    if value is not None:
        _judge(run, value)


def _judge(run: Training, value: float) -> None:
    """Draw the conclusions of an evaluation: best model, early stopping, learning rate."""
    progress, spec = run.state.progress, run.plan.spec
    early_stopping.observe(spec, run.best, progress, value)
    if run.best.is_better(value, progress.best_metric):
        progress.best_metric, progress.best_step = value, progress.step
    run.state.scheduler.after_evaluation(value)
    if early_stopping.reached(spec, progress):
        run.reporter.notice(
            f"Stopped early at step {progress.step}: `{run.best.name}` has not improved in "
            f"{progress.evaluations_without_gain} evaluations"
        )


def _save(run: Training, *, beside: bool) -> None:
    """Make a checkpoint of this step and announce it when it is written: at once, or `beside` the
    steps that follow."""
    _require_finite_weights(run)
    progress = run.state.progress
    folder = run.checkpoints_dir / str(progress.step)
    progress.last_checkpoint = str(folder.relative_to(run.workspace))
    is_best = run.is_best_to_save
    if is_best:
        progress.best_checkpoint = progress.last_checkpoint
        progress.best_checkpoint_metric = progress.metric
    facts = {"path": progress.last_checkpoint, "metric": progress.metric, "best": is_best}
    announce = partial(_announce, run.reporter.send, folder, **facts)
    beside = beside and run.plan.spec.async_save
    with run.reporter.pausing_for(Phase.SAVING):
        written = run.saver.save(run.state, run.plan, folder, announce, beside=beside)
    if written:
        announce()


def _announce(send: Callable[[StageEvent], None], folder: Path, **facts: Any) -> None:
    send(
        CheckpointSaved(
            step=int(folder.name),
            bytes=atomic_dir.total_bytes(folder),
            manifest_sha256=atomic_dir.manifest_sha256(folder),
            **facts,
        )
    )


def _require_finite(run: Training) -> None:
    bad_step = run.state.tally.first_bad_step()
    if bad_step is not None:
        raise NonFiniteError(run.state, bad_step, "the loss or its gradient")
    scaler = run.state.accelerator.scaler
    # Halved with each step that is left out: so many in a row are no search for the right scale.
    if scaler is not None and scaler.get_scale() < LOWEST_LOSS_SCALE:
        what = f"the gradient in float16, with the loss scaled by less than {LOWEST_LOSS_SCALE:g},"
        raise NonFiniteError(run.state, run.state.progress.step, what)


def _require_finite_weights(run: Training) -> None:
    """An update can overflow although its loss did not: such weights must not be kept."""
    bad = int(not run.state.strategy.holds_finite_weights())
    if run.state.ranks.sums(bad) != [0]:
        raise NonFiniteError(run.state, run.state.progress.step, "a weight after the update")
