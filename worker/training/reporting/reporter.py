"""What a training reports to its supervisor: progress by the clock, metrics at logging steps."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from service.contract.stage.events import Metric, Notice, PhaseChanged, Progress, StageEvent
from service.contract.states import Phase
from worker.training.memory.usage import resident_bytes
from worker.training.objective import Evaluation
from worker.training.plan import Plan
from worker.training.progress import TrainingProgress
from worker.training.reporting.eta import TimeLeft
from worker.training.reporting.log_history import LogHistory

SECONDS_BETWEEN_PROGRESS: Final = 0.25


class ReportedState(Protocol):
    """The parts of a training's state that are reported."""

    plan: Plan
    progress: TrainingProgress
    history: LogHistory


class Reporter:
    """Sends events, and measures the speed of optimizer steps without evaluation and saving."""

    def __init__(
        self,
        send: Callable[[StageEvent], None],
        state: ReportedState,
        flops_per_token: float,
        clock: Callable[[], float] = time.monotonic,
        sizes: Mapping[str, int] | None = None,
    ) -> None:
        """`sizes`: split → number of features."""
        self.send = send
        self._state = state
        self._progress = state.progress
        self._flops_per_token = flops_per_token
        self._clock = clock
        self._last_progress = float("-inf")
        self._mark: float | None = None
        """Training time is added up to here; None while the training pauses."""
        self._phase, self._phase_began = Phase.LOADING, clock()
        self._left = TimeLeft(state.progress, sizes or {})
        self._all = _Speed()
        self._since_log = _Speed()

    def start(self) -> None:
        """Time counts as training from now on."""
        if self._phase is Phase.SAVING:
            self._left.saved(self._clock() - self._phase_began)
        self.phase(Phase.TRAINING)
        self._mark = self._clock()

    def stop(self) -> None:
        """The steps are over, and time does not count as training from now on."""
        self._stop_counting()
        self._left.steps_are_over = True

    def finished(self) -> None:
        """The stage has done everything: no time is left."""
        self._left.is_over = True
        self.tick(now=True)

    def pause(self, phase: Phase) -> None:
        """Another phase, until `start`."""
        self._stop_counting()
        self.phase(phase)

    def _stop_counting(self) -> None:
        self._add_up()
        self._mark = None

    def _add_up(self) -> None:
        if self._mark is None:
            return
        now = self._clock()
        seconds, self._mark = now - self._mark, now
        self._progress.seconds += seconds
        self._all.seconds += seconds
        self._since_log.seconds += seconds

    def count(self, examples: int, tokens: int, padded_tokens: int) -> None:
        """Count an optimizer step and its examples; `tokens` without padding."""
        self._add_up()
        self._left.step_made(self._state.plan, self._all.seconds)
        self._progress.examples += examples
        self._progress.tokens += tokens
        self._progress.padded_tokens += padded_tokens
        for speed in (self._all, self._since_log):
            speed.examples += examples
            speed.tokens += tokens

    def tick(self, *, now: bool = False) -> None:
        """Send the progress, at most every SECONDS_BETWEEN_PROGRESS. Never waits for the device."""
        time_ = self._clock()
        if not now and time_ - self._last_progress < SECONDS_BETWEEN_PROGRESS:
            return
        self._last_progress = time_
        self._add_up()
        done, total = self._progress.step, self._state.plan.total_steps
        in_phase, trained = time_ - self._phase_began, self._all.seconds
        self.send(
            Progress(
                step=done,
                of=total,
                epoch=self._state.plan.epoch_after(done),
                loss=self._progress.logged_loss,
                examples_per_second=self._all.per_second(self._all.examples),
                eta_seconds=self._left.seconds(self._state.plan, self._phase, in_phase, trained),
            )
        )

    def phase(self, phase: Phase) -> None:
        self._phase, self._phase_began = phase, self._clock()
        self.send(PhaseChanged(phase=phase))

    def notice(self, message: str, **data: object) -> None:
        self.send(Notice(message=message, data=data))

    def log(self, values: Mapping[str, float]) -> None:
        """Report metrics of the current step, with the speed since the last log."""
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
        }[self._state.plan.spec.include_num_input_tokens_seen]
        return {} if seen is None else {"num_input_tokens_seen": seen}

    def evaluated(self, found: Evaluation) -> None:
        self._left.evaluated(sum(v for n, v in found.speed.items() if n.endswith("_runtime")))
        self._metric("eval", found.metrics)
        self._remember({**found.metrics, **found.speed})

    def summary(
        self, train_loss: float, peak_flops: float | None, peak_memory: int
    ) -> dict[str, float]:
        """Metrics of the whole training, over all attempts, named as by Trainer.

        `peak_flops`: floating-point operations per second that all devices can do together; without
        it there is no `train_mfu`. `peak_memory`: bytes of the process that took the most.
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
        self._state.history.add(
            step, self._state.plan.epoch_after(step), {**values, **self._tokens_seen()}
        )

    def _metric(self, kind: Literal["train", "eval"], values: Mapping[str, float]) -> None:
        step = self._progress.step
        epoch = self._state.plan.epoch_after(step)
        remade = step <= self._progress.remade_until
        self.send(Metric(kind=kind, step=step, epoch=epoch, values=dict(values), is_remade=remade))


@dataclass
class _Speed:
    seconds: float = 0.0
    examples: int = 0
    tokens: int = 0

    def per_second(self, count: int) -> float | None:
        return count / self.seconds if self.seconds > 0 else None


class EvaluationProgress:
    """The progress of a job that does not train: one step per batch of its evaluation. Call it
    after each; `total` is how many are expected."""

    def __init__(self, send: Callable[[StageEvent], None], total: int) -> None:
        self._send = send
        self._total = total
        self._done = 0
        self._began = time.monotonic()
        self._sent = float("-inf")

    def __call__(self) -> None:
        self._done += 1
        now = time.monotonic()
        if now - self._sent >= SECONDS_BETWEEN_PROGRESS:
            self._sent = now
            self.report()

    def report(self) -> None:
        total = max(self._total, self._done)
        each = (time.monotonic() - self._began) / max(self._done, 1)
        left = each * (total - self._done) if self._done else None
        self._send(Progress(step=self._done, of=total, eta_seconds=left))
