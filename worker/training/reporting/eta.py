"""How long a training still takes: its steps, evaluations and checkpoints, and what follows them.

Pure arithmetic over times that `Reporter` measures. Nothing here waits for the device.
"""

from collections import deque
from collections.abc import Mapping
from typing import Final

from service.contract.spec.splits import TEST, is_validation
from service.contract.states import Phase
from worker.training.plan import Plan
from worker.training.progress import TrainingProgress

FEW_STEPS: Final = 5
"""After a resume, the speed of the earlier attempts is used until so many steps are measured."""
_BLOCK_SECONDS: Final = 0.5
"""Steps are measured in blocks at least this long: on a GPU single steps look shorter or longer."""
_BLOCKS: Final = 60
"""The recent past that the speed is taken from."""
_OUTLIER: Final = 3.0
"""No block counts as slower than this many medians: a compilation, or a process that slept."""
_FORWARD_SHARE: Final = 1 / 3
"""Of a training step: the backward pass takes about twice as long as the forward pass."""
_RECENT: Final = 5
"""Evaluations, or checkpoints, whose mean duration is expected of the next one."""


class Pace:
    """Seconds of training per epoch, from the recent steps of this attempt.

    Epochs, not steps, because the last step of an epoch may be shorter, and because
    `auto_find_batch_size` changes the number of micro-batches. The first step is not counted: it
    compiles, allocates and loads.
    """

    def __init__(self) -> None:
        self._blocks: deque[tuple[float, float]] = deque(maxlen=_BLOCKS)
        """Epochs and seconds of each."""
        self._open = (0.0, 0.0)
        self.steps = 0

    def add(self, epochs: float, seconds: float) -> None:
        """Count one optimizer step, which was this part of an epoch."""
        self.steps += 1
        if self.steps == 1:
            return
        self._open = (self._open[0] + epochs, self._open[1] + seconds)
        if self._open[1] >= _BLOCK_SECONDS:
            self._blocks.append(self._open)
            self._open = (0.0, 0.0)

    def seconds_per_epoch(self) -> float | None:
        """None until two steps are made."""
        blocks = [*self._blocks, self._open] if self._open[0] else list(self._blocks)
        epochs = sum(each for each, _ in blocks)
        if not epochs:
            return None
        slowest = _OUTLIER * _median([(seconds / each, each) for each, seconds in blocks])
        return sum(min(seconds, slowest * each) for each, seconds in blocks) / epochs


class TimeLeft:
    """The seconds until the end of the `train` stage.

    An upper bound where the training may end early (`early_stopping_patience`), or where its last
    evaluation may serve as the final one. `save_strategy: best` counts no checkpoints.
    """

    def __init__(self, progress: TrainingProgress, sizes: Mapping[str, int]) -> None:
        """`sizes`: split → number of features. `progress` keeps the durations for a resume."""
        self._progress = progress
        self._validation = sum(count for name, count in sizes.items() if is_validation(name))
        self._test = sizes.get(TEST, 0)
        self._pace = Pace()
        self._evaluations: deque[float] = deque(maxlen=_RECENT)
        self._saves: deque[float] = deque(maxlen=_RECENT)
        self._step_began = 0.0
        self._earlier_pace: float | None = None
        self._evaluated_step = self._saved_step = -1
        self.steps_are_over = self.is_over = False

    def step_made(self, plan: Plan, seconds: float) -> None:
        """Count an optimizer step; `seconds`: the training time of this attempt so far."""
        step = self._progress.step
        if not self._pace.steps:
            self._earlier_pace = self._restored_pace(plan, step - 1, seconds)
        epochs = plan.epoch_after(step) - plan.epoch_after(step - 1)
        self._pace.add(epochs, seconds - self._step_began)
        self._step_began = seconds

    def evaluated(self, seconds: float) -> None:
        self._evaluations.append(seconds)
        self._evaluated_step = self._progress.step
        self._progress.evaluation_seconds = _mean(self._evaluations)

    def saved(self, seconds: float) -> None:
        """Count a checkpoint that has held the training up for so long."""
        self._saves.append(seconds)
        self._saved_step = self._progress.step
        self._progress.saving_seconds = _mean(self._saves)

    def seconds(self, plan: Plan, phase: Phase, in_phase: float, trained: float) -> float | None:
        """None as long as no speed is known.

        `in_phase`: seconds since the phase began; `trained`: the training time of this attempt.
        """
        if self.is_over:
            return 0.0
        pace = self._seconds_per_epoch(plan, trained)
        evaluation = self._expected_evaluation(plan, pace)
        saving = self._progress.saving_seconds or 0.0
        finally_ = _evaluates_finally(plan)
        if self.steps_are_over:
            expected = {
                Phase.SAVING: saving,
                Phase.EVALUATING: evaluation * (finally_ or phase is Phase.EVALUATING),
                Phase.PREDICTING: self._test_seconds(evaluation),
            }
            return _after_the_steps(expected, phase, in_phase)
        step, total = self._progress.step, plan.total_steps
        epochs = plan.epoch_after(total) - plan.epoch_after(step)
        if pace is None and epochs > 0:
            return None
        steps = epochs * (pace or 0.0)
        begun = min(trained - self._step_began, steps / max(total - step, 1))
        evaluations, saves = self._evaluations_left(plan), self._saves_left(plan)
        spent = min(in_phase, evaluation) if phase is Phase.EVALUATING else 0.0
        # The finished model is saved and evaluated, too.
        final = saving + evaluation * finally_ + self._test_seconds(evaluation)
        return steps - begun + evaluations * evaluation - spent + saves * saving + final

    def _seconds_per_epoch(self, plan: Plan, trained: float) -> float | None:
        if not self._pace.steps:
            return self._restored_pace(plan, self._progress.step, trained)
        own = self._pace.seconds_per_epoch()
        if self._earlier_pace is None or self._pace.steps > FEW_STEPS:
            return own
        return self._earlier_pace

    def _restored_pace(self, plan: Plan, step: int, trained: float) -> float | None:
        """That of earlier attempts, which ended at `step`."""
        seconds = self._progress.seconds - trained
        return seconds / plan.epoch_after(step) if step and seconds > 0 else None

    def _expected_evaluation(self, plan: Plan, pace: float | None) -> float:
        """Before the first evaluation, as long as the forward passes of so many training rows;
        generated texts take longer."""
        if not self._validation:
            return 0.0
        measured = self._progress.evaluation_seconds
        if measured is not None:
            return measured
        return (pace or 0.0) / max(plan.examples, 1) * self._validation * _FORWARD_SHARE

    def _test_seconds(self, evaluation: float) -> float:
        return evaluation * self._test / self._validation if self._validation else 0.0

    def _evaluations_left(self, plan: Plan) -> int:
        if not self._validation:
            return 0
        progress = self._progress
        pending = progress.evaluation_pending or (
            self._pace.steps > 0
            and self._evaluated_step != progress.step
            and plan.due(progress.step).evaluate
        )
        return plan.evaluations_after(progress.step) + int(pending)

    def _saves_left(self, plan: Plan) -> int:
        step = self._progress.step
        pending = self._pace.steps > 0 and self._saved_step != step and plan.due(step).save
        return plan.saves_after(step) + int(pending)


def _after_the_steps(expected: Mapping[Phase, float], phase: Phase, in_phase: float) -> float:
    """`expected`: the phases that follow the last step, in their order, with their seconds."""
    order = list(expected)
    now = order.index(phase) if phase in expected else 0
    later = sum(expected[each] for each in order[now + 1 :])
    return max(expected[order[now]] - in_phase, 0.0) + later


def _evaluates_finally(plan: Plan) -> bool:
    """Whether the finished model may not be the one that was evaluated last."""
    spec = plan.spec
    in_other_dtype = spec.bf16_full_eval or spec.fp16_full_eval
    return spec.load_best_model_at_end or in_other_dtype or not plan.due(plan.total_steps).evaluate


def _median(weighted: list[tuple[float, float]]) -> float:
    """The lower weighted median of (value, weight)."""
    half, below = sum(weight for _, weight in weighted) / 2, 0.0
    for value, weight in sorted(weighted):
        below += weight
        if below >= half:
            return value
    raise AssertionError("no values")


def _mean(values: deque[float]) -> float:
    return sum(values) / len(values)
