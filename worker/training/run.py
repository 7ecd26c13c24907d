"""One training: its parts, its state, and the questions that the loop asks about them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from worker.training.batches.rank_shares import RankShares
from worker.training.checkpointing import resume_from
from worker.training.checkpointing import state as checkpoint
from worker.training.checkpointing.async_saver import Saver
from worker.training.checkpointing.state import State
from worker.training.evaluation import best_model, early_stopping
from worker.training.loss import auxiliary_loss
from worker.training.memory.usage import CurrentBatch
from worker.training.objective import Batch, Evaluation, LossSum, Objective
from worker.training.plan import Plan
from worker.training.progress import BestMetric
from worker.training.reporting.reporter import Reporter
from worker.training.reproducibility import fingerprint


@dataclass
class TrainingRun:
    """Wired by the stage."""

    state: State
    objective: Objective
    loss_sum: LossSum
    """The objective's own, unless labels are smoothed."""
    order: Callable[[int], Sequence[int]]
    """Epoch → indices of the training features; a pure function."""
    shares: RankShares
    """Loads this process's shares of the micro-batches."""
    evaluate: Callable[[], Evaluation | None]
    """Evaluates the validation splits, with metrics named `eval_…`; None when it was interrupted
    because a stop was requested."""
    best: BestMetric
    reporter: Reporter
    workspace: Path
    checkpoints_dir: Path
    stop_requested: Callable[[], bool] = lambda: False
    """Read once after each optimizer step; with several processes before it."""
    current_batch: CurrentBatch = field(default_factory=CurrentBatch)

    def __post_init__(self) -> None:
        self._initial_plan = self.state.plan
        self._auxiliary = auxiliary_loss.of_objective(self.objective)
        self.saver = Saver(self.reporter)
        self.stop_agreed = False
        """With several processes: whether one of them was asked to stop after the current step."""

    def compute(
        self, model: torch.nn.Module, batch: Batch, items: int
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The sum of the losses of a batch of `items` on the device, and further values."""
        with self._auxiliary.observed() as seen:
            if self.objective.logged:
                total, values = self.objective.loss_and_values(model, batch)
            else:
                total, values = self.loss_sum(model, batch), None
        return self._auxiliary.added(total, values, seen, items)

    @property
    def plan(self) -> Plan:
        return self.state.plan

    @property
    def is_stopping(self) -> bool:
        return self.stop_requested() if self.state.ranks.world_size == 1 else self.stop_agreed

    @property
    def has_ended(self) -> bool:
        progress, plan = self.state.progress, self.plan
        return progress.step == plan.total_steps or early_stopping.reached(plan.spec, progress)

    @property
    def is_saved(self) -> bool:
        """Whether the latest checkpoint is of the current step."""
        progress = self.state.progress
        latest = progress.last_checkpoint
        return latest is not None and int(Path(latest).name) == progress.step

    @property
    def is_best_so_far(self) -> bool:
        """Whether the current step was evaluated, and is better than every saved one."""
        progress = self.state.progress
        metric, saved = progress.metric, progress.best_checkpoint_metric
        return metric is not None and self.best.is_better(metric, saved)

    @property
    def needs_initial_checkpoint(self) -> bool:
        """Whether the training may have to return to its initial state: after a rollback, or
        because it continues a job whose last evaluation may remain the best."""
        if self.state.progress.last_checkpoint is not None:
            return False
        spec = self.plan.spec
        return spec.on_non_finite == "rollback" or (spec.saves_each_best and self.is_best_so_far)

    def resume(self, folder: Path) -> None:
        """Continue from a checkpoint of this job. StageError(checkpoint_unreadable)."""
        checkpoint.restore(self.state, self._initial_plan, folder)
        best_model.forget_lost(self.state.progress, self.workspace, self.state.ranks)
        self._report_other_machine(folder)

    def resume_other_job(self, folder: Path) -> None:
        """Continue from a checkpoint of another job. StageError: checkpoint_unreadable, or
        invalid_option when it does not fit this job's plan."""
        resume_from.restore(self.state, self._initial_plan, folder)
        self._report_other_machine(folder)

    def _report_other_machine(self, folder: Path) -> None:
        here = fingerprint.facts(self.state.accelerator.device)
        moved = fingerprint.moved(checkpoint.read_progress(folder)["machine"], here)
        if moved is not None:
            self.reporter.send(moved)

    def use_smaller_batches(self, plan: Plan) -> None:
        """Follow `plan` from the current step on: the present plan, in smaller micro-batches."""
        spec, progress = plan.spec, self.state.progress
        self.state.plan = plan
        progress.batch_size = spec.per_device_train_batch_size
        self.state.optimizer.zero_grad()
        self.reporter.notice(
            f"Out of memory at step {progress.step + 1}: micro-batches of "
            f"{spec.per_device_train_batch_size} from here on, {spec.gradient_accumulation_steps} "
            "of them per optimizer step, which stays the same",
            per_device_train_batch_size=spec.per_device_train_batch_size,
            gradient_accumulation_steps=spec.gradient_accumulation_steps,
        )
