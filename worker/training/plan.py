"""How many optimizer steps there will be, and what is due after each: pure arithmetic.

The numbers are those of `transformers.Trainer`: the last, shorter accumulation of an epoch is a
step of its own, intervals below 1 are ratios of all steps, epochs may be fractions.
"""

import math
from dataclasses import dataclass, replace

from service.contract.spec.training import TrainingSpec


@dataclass(frozen=True)
class Due:
    log: bool
    evaluate: bool
    save: bool
    """Never with `save_strategy: best`, where the evaluation decides."""


@dataclass(frozen=True)
class Plan:
    spec: TrainingSpec
    examples: int
    """Per epoch, without those that `dataloader_drop_last` drops."""
    batches_per_epoch: int
    total_steps: int
    processes: int = 1
    """Processes that train together; a batch is that of all of them."""

    @classmethod
    def from_spec(cls, spec: TrainingSpec, examples: int, processes: int = 1) -> "Plan":
        size = spec.per_device_train_batch_size * processes
        # A data set smaller than one batch is still trained on.
        if spec.dataloader_drop_last and examples > size:
            examples -= examples % size
        batches = math.ceil(examples / size)
        steps_per_epoch = math.ceil(batches / spec.gradient_accumulation_steps)
        epochs = spec.num_train_epochs
        steps = spec.max_steps if spec.max_steps > 0 else math.ceil(epochs * steps_per_epoch)
        return cls(spec, examples, batches, steps, processes)

    @property
    def batch_size(self) -> int:
        """Examples of one micro-batch, on all devices together."""
        return self.spec.per_device_train_batch_size * self.processes

    def with_batches_of(self, size: int) -> "Plan":
        """The same optimizer steps in micro-batches of `size` examples per device, which must
        divide the present size."""
        spec = self.spec
        parts = spec.per_device_train_batch_size // size
        smaller = spec.model_copy(
            update={
                "per_device_train_batch_size": size,
                "gradient_accumulation_steps": spec.gradient_accumulation_steps * parts,
            }
        )
        batches = math.ceil(self.examples / (size * self.processes))
        return replace(self, spec=smaller, batches_per_epoch=batches)

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(self.batches_per_epoch / self.spec.gradient_accumulation_steps)

    @property
    def warmup_steps(self) -> int:
        warmup = self.spec.warmup_steps
        return int(warmup) if warmup >= 1 else math.ceil(self.total_steps * warmup)

    def cursor(self, step: int) -> tuple[int, int]:
        """The epoch, and the micro-batch within it, that follow optimizer step number `step`."""
        epoch, update = divmod(step, self.steps_per_epoch)
        return epoch, update * self.spec.gradient_accumulation_steps

    def epoch_after(self, step: int) -> float:
        """Passes over the data after `step` optimizer steps."""
        epoch, batch = self.cursor(step)
        return epoch + batch / self.batches_per_epoch

    def due(self, step: int) -> Due:
        """What follows optimizer step number `step` (from 1)."""
        spec, last = self.spec, step == self.total_steps
        epoch_ends = last or step % self.steps_per_epoch == 0
        delayed = spec.eval_delay > (
            self.epoch_after(step) if spec.eval_strategy == "epoch" else step
        )
        eval_steps = spec.eval_steps if spec.eval_steps is not None else spec.logging_steps

        def due(strategy: str, interval: float, *, at_end: bool) -> bool:
            if strategy == "steps":
                return (last and at_end) or step % self.interval(interval) == 0
            return strategy == "epoch" and epoch_ends

        return Due(
            log=(spec.logging_first_step and step == 1)
            or due(spec.logging_strategy, spec.logging_steps, at_end=False),
            evaluate=not delayed and due(spec.eval_strategy, eval_steps, at_end=True),
            save=due(spec.save_strategy, spec.save_steps, at_end=True),
        )

    def evaluations_after(self, step: int) -> int:
        """How many evaluations are due after the steps that follow `step`; early stopping may
        save some."""
        spec, delay = self.spec, math.ceil(self.spec.eval_delay)
        eval_steps = spec.eval_steps if spec.eval_steps is not None else spec.logging_steps
        every = self._every(spec.eval_strategy, eval_steps)
        first = delay * self.steps_per_epoch if spec.eval_strategy == "epoch" else delay
        last_is_due = self.due(self.total_steps).evaluate
        return self._count_after(step, every, first) + self._last(step, every, is_due=last_is_due)

    def saves_after(self, step: int) -> int:
        """The same for checkpoints; 0 with `save_strategy: best`, where the number is unknown."""
        every = self._every(self.spec.save_strategy, self.spec.save_steps)
        return self._count_after(step, every) + self._last(step, every, is_due=True)

    def _every(self, strategy: str, steps: float) -> int:
        """The interval in steps; 0: never."""
        intervals = {"steps": self.interval(steps), "epoch": self.steps_per_epoch}
        return intervals.get(strategy, 0)

    def _count_after(self, step: int, every: int, first: int = 0) -> int:
        """Multiples of `every` after `step`, and not before `first`."""
        if not every:
            return 0
        return max(self.total_steps // every - max(step, first - 1) // every, 0)

    def _last(self, step: int, every: int, *, is_due: bool) -> int:
        """1 if the last step is still to come, and is due although it is not a multiple of
        `every`."""
        return int(
            every > 0 and is_due and step < self.total_steps and self.total_steps % every > 0
        )

    def interval(self, steps: float) -> int:
        """An option's interval in steps: below 1 it is a ratio of all steps."""
        return math.ceil(steps * self.total_steps) if steps < 1 else int(steps)
