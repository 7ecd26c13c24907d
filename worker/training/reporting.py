"""What a training tells its supervisor: progress by the clock, numbers at logging steps."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Literal

from service.contract.events import Metric, Notice, PhaseChanged, Progress, StageEvent
from service.contract.states import Phase
from worker.training.log_history import LogHistory
from worker.training.memory import resident_bytes
from worker.training.objective import Evaluation
from worker.training.plan import Plan
from worker.training.progress import TrainingProgress

SECONDS_BETWEEN_PROGRESS: Final = 0.25


class Reporter:
    """Sends events; measures the speed of optimizer steps alone, without evaluations and saving."""

    def __init__(
        self,
        send: Callable[[StageEvent], None],
        plan: Plan,
        progress: TrainingProgress,
        history: LogHistory,
        flops_per_token: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.send = send
        self.plan = plan
        self._progress = progress
        self._history = history
        self._flops_per_token = flops_per_token
        self._clock = clock
        self._last_progress = float("-inf")
        self._mark: float | None = None
        """Since when training time has not been added up; None while it stands still."""
        self._first_step = progress.step
        self._all = _Speed()
        self._since_log = _Speed()

    def start(self) -> None:
        """From now on time counts as training."""
        self.phase(Phase.TRAINING)
        self._mark = self._clock()

    def stop(self) -> None:
        """From now on it does not."""
        self._add_up()
        self._mark = None

    @contextmanager
    def pausing_for(self, phase: Phase) -> Iterator[None]:
        """What happens inside is another phase, and its time no training."""
        self.stop()
        self.phase(phase)
        yield
        self.start()

    def _add_up(self) -> None:
        if self._mark is None:
            return
        now = self._clock()
        seconds, self._mark = now - self._mark, now
        self._progress.seconds += seconds
        self._all.seconds += seconds
        self._since_log.seconds += seconds

    def count(self, examples: int, tokens: int, padded_tokens: int) -> None:
        """A batch was trained on; `tokens` without padding."""
        self._progress.examples += examples
        self._progress.tokens += tokens
        self._progress.padded_tokens += padded_tokens
        for speed in (self._all, self._since_log):
            speed.examples += examples
            speed.tokens += tokens

    def tick(self, *, now: bool = False) -> None:
        """Send the progress unless that was done a moment ago. Never waits for the device."""
        time_ = self._clock()
        if not now and time_ - self._last_progress < SECONDS_BETWEEN_PROGRESS:
            return
        self._last_progress = time_
        self._add_up()
        done, total = self._progress.step, self.plan.total_steps
        steps = done - self._first_step
        self.send(
            Progress(
                step=done,
                of=total,
                epoch=self.plan.epoch_after(done),
                loss=self._progress.logged_loss,
                examples_per_second=self._all.per_second(self._all.examples),
                eta_seconds=self._all.seconds / steps * (total - done) if steps else None,
            )
        )

    def phase(self, phase: Phase) -> None:
        self.send(PhaseChanged(phase=phase))

    def notice(self, message: str, **data: object) -> None:
        self.send(Notice(message=message, data=data))

    def log(self, values: Mapping[str, float]) -> None:
        """Numbers of the training at the present step, with the speed since the last ones."""
        self._add_up()
        speed, self._since_log = self._since_log, _Speed()
        rates = {
            "examples_per_second": speed.per_second(speed.examples),
            "tokens_per_second": speed.per_second(speed.tokens),
        }
        known = {name: rate for name, rate in rates.items() if rate is not None}
        used = {"total_flos": self.total_flos, "memory_rss_bytes": resident_bytes()}
        self._metric("train", {**values, **known, **self._tokens_seen(), **used})
        self._remember(values)

    def _tokens_seen(self) -> dict[str, float]:
        seen = {
            "no": None,
            "all": self._progress.padded_tokens,
            "non_padding": self._progress.tokens,
        }[self.plan.spec.include_num_input_tokens_seen]
        return {} if seen is None else {"num_input_tokens_seen": seen}

    def evaluated(self, found: Evaluation) -> None:
        self._metric("eval", found.metrics)
        self._remember({**found.metrics, **found.speed})

    def summary(
        self, train_loss: float, peak_flops: float | None, peak_memory: int
    ) -> dict[str, float]:
        """Of the whole training, over all attempts; the names are Trainer's.

        `peak_flops`: the floating-point operations that all devices together could make in a
        second, or None, and then there is no `train_mfu`, the share of them that was made.
        `peak_memory`: the bytes that the process which took the most has taken.
        """
        progress, flops = self._progress, self.total_flos
        seconds = max(progress.seconds, 1e-9)
        logged = {
            "train_loss": train_loss,
            "train_runtime": progress.seconds,
            "train_samples_per_second": progress.examples / seconds,
            "train_steps_per_second": progress.step / seconds,
            "total_flos": flops,
        }
        self._remember(logged)
        return {
            **logged,
            "train_tokens_per_second": progress.tokens / seconds,
            "train_peak_memory_bytes": peak_memory,
            **self._tokens_seen(),
            **({"train_mfu": flops / seconds / peak_flops} if peak_flops else {}),
        }

    @property
    def total_flos(self) -> float:
        """Floating-point operations so far, over all attempts and processes."""
        return self._flops_per_token * self._progress.padded_tokens

    def _remember(self, values: Mapping[str, float]) -> None:
        step = self._progress.step
        self._history.add(step, self.plan.epoch_after(step), {**values, **self._tokens_seen()})

    def _metric(self, kind: Literal["train", "eval"], values: Mapping[str, float]) -> None:
        step = self._progress.step
        epoch = self.plan.epoch_after(step)
        remade = step <= self._progress.remade_until
        self.send(Metric(kind=kind, step=step, epoch=epoch, values=dict(values), is_remade=remade))


class _Speed:
    def __init__(self) -> None:
        self.seconds = 0.0
        self.examples = 0
        self.tokens = 0

    def per_second(self, count: int) -> float | None:
        return count / self.seconds if self.seconds > 0 else None
