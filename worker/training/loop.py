"""The training loop, from `train` at the top to one micro-batch in `forward_backward`.

It knows no task, no MLflow and no Hub. Losses stay on the device until a number is due, so that the
host never waits for the device in between.
"""

from collections.abc import Iterator
from enum import Enum, auto
from functools import partial
from itertools import islice
from typing import NamedTuple

import torch
from accelerate.utils.memory import clear_device_cache

from service.contract.states import Phase
from worker.training import rollback
from worker.training.batches.dataloader import chunks
from worker.training.batches.rank_shares import Share
from worker.training.evaluation import early_stopping
from worker.training.evaluation.evaluator import on_device
from worker.training.memory import auto_batch_size
from worker.training.memory.usage import TRIM_STEPS, out_of_memory_explained, trim
from worker.training.objective import BatchSize, shape_of
from worker.training.plan import Due
from worker.training.run import TrainingRun


class Outcome(Enum):
    CONTINUE = auto()
    RESTART = auto()
    """Fetch the batches again: after a rollback, or for smaller micro-batches."""
    STOPPED = auto()
    """The training was asked to stop, and has saved its last step."""
    FINISHED = auto()


class StepLoss(NamedTuple):
    """This process's share of an accumulated batch, on the device."""

    mean: torch.Tensor
    """A scalar."""
    values: torch.Tensor | None
    """Sums of what the objective logs in addition (`Objective.logged`)."""


class StepResult(NamedTuple):
    grad_norm: torch.Tensor
    """Before clipping; a scalar on the device."""
    learning_rate: float


class Totals(NamedTuple):
    """Of one accumulated batch, over all processes."""

    items: int
    examples: int
    tokens: int
    padded_tokens: int
    stop_requests: int


def train(run: TrainingRun) -> Outcome:
    """Make the remaining optimizer steps; FINISHED, or STOPPED when `stop_requested` is true.

    Raises StageError: non_finite_loss, out_of_memory, disk_full, invalid_option (an unknown
    `metric_for_best_model`).
    """
    progress = run.state.progress
    with run.saver:
        run.state.model.train()
        run.reporter.start()
        if run.needs_initial_checkpoint:
            save(run, in_background=True)
        while progress.evaluation_pending or not run.has_ended:
            if train_epoch(run) is Outcome.STOPPED:
                return Outcome.STOPPED
        run.saver.finish(run.state.ranks)
        run.reporter.stop()
    return Outcome.FINISHED


def train_epoch(run: TrainingRun) -> Outcome:
    """Train on the rest of the current epoch, and do what is due after each optimizer step."""
    progress = run.state.progress
    if progress.evaluation_pending:  # an earlier attempt was stopped before it
        return evaluate_and_save(run, run.plan.due(progress.step))
    for micro_batches in fetch(run):
        step = train_step(run, micro_batches)
        if step is None:  # out of memory
            return Outcome.RESTART
        run.saver.raise_failure()
        due, last = run.plan.due(progress.step), progress.step == run.plan.total_steps
        stopping = run.is_stopping
        if due.log or due.evaluate or due.save or last or stopping:
            non_finite = rollback.in_loss(run.state)
            if non_finite is not None:
                rollback.roll_back(run, non_finite)
                return Outcome.RESTART
        if due.log:
            log(run, step)
        run.reporter.tick(now=last or stopping)
        outcome = save_and_stop(run, due) if stopping else evaluate_and_save(run, due)
        if outcome is not Outcome.CONTINUE or run.has_ended:
            return outcome
    return Outcome.CONTINUE


def fetch(run: TrainingRun) -> Iterator[list[Share]]:
    """The micro-batches of each optimizer step from the current one to the end of its epoch; of
    each micro-batch this process's share, on the CPU."""
    epoch, first = run.plan.cursor(run.state.progress.step)
    examples = run.order(epoch)[: run.plan.examples]
    shares = run.shares.over(chunks(examples, run.plan.batch_size)[first:], epoch)
    while micro_batches := list(islice(shares, run.plan.spec.gradient_accumulation_steps)):
        yield micro_batches


def train_step(run: TrainingRun, micro_batches: list[Share]) -> StepResult | None:
    """One optimizer step. None: memory ran out, and the plan has smaller micro-batches now."""
    state, spec = run.state, run.plan.spec
    totals = count(run, micro_batches)
    run.stop_agreed = totals.stop_requests > 0
    with out_of_memory_explained(run.current_batch, "training.per_device_train_batch_size"):
        compute = partial(forward_backward, run, micro_batches, totals.items)
        loss = auto_batch_size.attempt(compute, run.plan, run.use_smaller_batches)
        if loss is None:
            return None
        # Not earlier: in float16 it waits to know whether the previous step was skipped.
        learning_rate = state.scheduler.learning_rate()
        # Clips, updates the weights, and clears the gradients. The norm is logged in any case.
        grad_norm = state.strategy.step(spec.max_grad_norm or float("inf"))
    state.scheduler.after_step(state.skipped.last() if state.skipped is not None else None)
    state.progress.step += 1
    state.progress.metric = None
    finite = loss.mean.isfinite()
    if state.accelerator.scaler is None:  # which would skip a step with such gradients
        finite &= grad_norm.isfinite()
    state.tally.add(state.progress.step, loss.mean, finite)
    state.values.add(loss.values)
    run.reporter.count(totals.examples, totals.tokens, totals.padded_tokens)
    free_memory(run)
    return StepResult(grad_norm, learning_rate)


def forward_backward(run: TrainingRun, micro_batches: list[Share], items: int) -> StepLoss:
    """Accumulate the gradients of one optimizer step. The last backward pass sums the gradients
    over all processes."""
    state, processes = run.state, run.state.ranks.world_size
    provide_step_statistics(run, micro_batches)
    loss = torch.zeros((), device=state.accelerator.device)
    values = None
    for number, (batch, is_own) in enumerate(micro_batches, start=1):
        run.current_batch.record(*shape_of(batch))
        # Around the forward pass as well: DDP decides there whether to synchronize gradients.
        with state.strategy.accumulate(last=number == len(micro_batches)):
            own = run.objective.item_count(batch)
            total, found = run.compute(state.model, on_device(batch, state.accelerator), own)
            part = total / max(items, 1) if is_own else total * 0
            # Strategies average gradients over the processes; the sum is needed here.
            state.strategy.backward(part * processes)
        loss += part.detach()
        if is_own and found is not None:
            values = found if values is None else values + found
        run.reporter.tick()
    return StepLoss(loss, values)


def provide_step_statistics(run: TrainingRun, micro_batches: list[Share]) -> None:
    """Give the objective the statistics of the whole step that its losses need; most need none."""
    if not run.objective.needs_step_statistics:
        return
    state = run.state
    with torch.no_grad():
        found = [
            run.objective.step_statistics(state.model, on_device(batch, state.accelerator)) * is_own
            for batch, is_own in micro_batches
        ]
    run.objective.use_step_statistics(state.ranks.sum_tensors(torch.stack(found).sum(dim=0)))


def evaluate_and_save(run: TrainingRun, due: Due) -> Outcome:
    """The evaluation and the checkpoint that are due after the current step."""
    progress = run.state.progress
    if due.evaluate and not evaluate(run):
        return save_and_stop(run, due)
    progress.evaluation_pending = False
    if due.save or (run.plan.spec.saves_each_best and run.is_best_so_far):
        # After the last step there is nothing to do in the meantime.
        return save(run, in_background=not run.has_ended)
    return Outcome.CONTINUE


def save_and_stop(run: TrainingRun, due: Due) -> Outcome:
    """Save the current step; the resumed training begins with the evaluation that is due."""
    run.state.progress.evaluation_pending = due.evaluate
    saved = save(run, in_background=False)
    return Outcome.STOPPED if saved is Outcome.CONTINUE else saved


def save(run: TrainingRun, *, in_background: bool) -> Outcome:
    """Save the current step. RESTART: a weight was not finite, and the training was rolled back."""
    non_finite = rollback.in_weights(run.state)
    if non_finite is not None:
        rollback.roll_back(run, non_finite)
        return Outcome.RESTART
    progress = run.state.progress
    folder = run.checkpoints_dir / str(progress.step)
    progress.last_checkpoint = str(folder.relative_to(run.workspace))
    is_best = run.is_best_so_far
    if is_best:
        progress.best_checkpoint = progress.last_checkpoint
        progress.best_checkpoint_metric = progress.metric
    in_background = in_background and run.plan.spec.async_save
    run.saver.save(run.state, folder, is_best=is_best, in_background=in_background)
    return Outcome.CONTINUE


def evaluate(run: TrainingRun) -> bool:
    """Evaluate and report; update the best metric, early stopping and the learning rate. False: the
    evaluation was interrupted because a stop was requested."""
    run.reporter.pause(Phase.EVALUATING)
    evaluation = run.evaluate()
    if evaluation is None:
        return False
    run.reporter.start()
    run.reporter.evaluated(evaluation)
    progress, spec = run.state.progress, run.plan.spec
    progress.metric = value = run.best.value_in(evaluation.metrics)
    if value is None:
        return True
    early_stopping.observe(spec, run.best, progress, value)
    if early_stopping.is_first_without_number(progress, value):
        run.reporter.notice(
            f"`{run.best.name}` was not a number at step {progress.step}: such an evaluation is "
            "never the best, and counts as one without improvement"
        )
    if run.best.is_better(value, progress.best_metric):
        progress.best_metric, progress.best_step = value, progress.step
    run.state.scheduler.after_evaluation(value)
    if early_stopping.reached(spec, progress):
        run.reporter.notice(early_stopping.described(str(run.best.name), progress))
    return True


def log(run: TrainingRun, step: StepResult) -> None:
    """Read the losses from the device, and report their mean since the last log."""
    progress, tally = run.state.progress, run.state.tally
    total, means = tally.total(), run.state.values.means()
    tally.reset()
    run.state.values.reset()
    progress.logged_loss = total / (progress.step - progress.logged_step)
    progress.loss_total += total
    progress.logged_step = progress.step
    run.reporter.log(
        {
            "loss": progress.logged_loss,
            "grad_norm": float(step.grad_norm.item()),
            "learning_rate": step.learning_rate,
            **means,
            **run.objective.derived(means),
        }
    )


def count(run: TrainingRun, micro_batches: list[Share]) -> Totals:
    """What the step's micro-batches hold, counted on the CPU before any of them is computed."""
    counted = [
        (run.objective.item_count(b), *BatchSize.from_batch(b))
        for b, is_own in micro_batches
        if is_own
    ]
    own = [sum(values) for values in zip(*counted, strict=True)] or [0, 0, 0, 0]
    return Totals(*run.state.ranks.all_reduce_sum(*own, int(run.stop_requested())))


def free_memory(run: TrainingRun) -> None:
    """Every so many steps: the device's cache if the options ask for it, and the host's heap."""
    step, every = run.state.progress.step, run.plan.spec.torch_empty_cache_steps
    if every and step % every == 0:
        clear_device_cache()
    if step % TRIM_STEPS == 0:
        trim()
