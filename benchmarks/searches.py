"""Simulates searches of 1,000 trials: what ASHA trains to find what random search finds.

    python -m benchmarks.searches [--trials 1000] [--seeds 9] [--parallel 8]

No model is trained. A trial is a learning curve over 81 units of training,

    loss(t) = best + 2.5 exp(-t / pace) + noise

with `best` and `pace` from six hyper-parameters in [0, 1]: best = 1 + sum of w_i (x_i - o_i)^2 over
five of them, with weights from 3 to 1, so that of 1,000 random trials few are good, and pace =
4 + 16 x_6, so that slow trials look worse at first than they are. The noise of an evaluation is
normal, 0.02. Eight workers take trials as they
get free, in simulated time in which a unit takes between 0.8 and 1.25. All three searches try the
same trials in the same order, with the service's own rules (service/studies/halving.py):

- random: every trial to its end;
- asha: rungs after 3, 9 and 27 units; trials that are not among the best third are paused, and
  continue where they were if they are later;
- asha that only stops: they are ended, as Optuna's pruner does.

The result of a search is the loss, without noise, of the finished trial that measured best. Prints
for each seed the units that each search trains and its result, and the ratio of the units that
random search and ASHA need to the result of random search, whole and in parts (0: never).

`--suggestions` instead prints how long a suggestion takes in a search with that many trials.
"""

import argparse
import heapq
import math
import random
import statistics
import time
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

from service.contract.search.objectives import Objective
from service.contract.search.pruners import AshaPruner, NoPruner
from service.contract.search.samplers import RandomSampler, SamplerSpec, TpeSampler
from service.contract.search.space import Dimension
from service.contract.search.states import TrialState
from service.studies.halving import Halving
from service.studies.history import Trial

UNITS: Final = 81
RUNGS: Final = [3, 9, 27]
_WEIGHTS: Final = (3.0, 2.5, 2.0, 1.5, 1.0)
_OPTIMUM: Final = (0.3, 0.7, 0.5, 0.2, 0.8)
_NOISE: Final = 0.02
TOLERANCE: Final = _NOISE / 4
"""Losses that differ by less are the same quality."""
PARTS: Final = {"an eighth": 1 / 8, "a quarter": 1 / 4, "half": 1 / 2, "all": 1.0}
"""Of the trials of random search."""


@dataclass(frozen=True)
class Curve:
    """A trial's losses."""

    values: tuple[float, ...]
    seed: int

    def true_loss(self, unit: int = UNITS) -> float:
        *values, slowness = self.values
        terms = zip(_WEIGHTS, values, _OPTIMUM, strict=True)
        best = 1 + sum(weight * (value - optimum) ** 2 for weight, value, optimum in terms)
        return best + 2.5 * math.exp(-unit / (4 + 16 * slowness))

    def loss(self, unit: int) -> float:
        """As an evaluation measures it."""
        noise = random.Random(self.seed * 1000 + unit).gauss(0, _NOISE)
        return self.true_loss(unit) + noise

    @property
    def pace(self) -> float:
        """Simulated time of a unit."""
        return random.Random(self.seed).uniform(0.8, 1.25)


def curves(seed: int, trials: int) -> list[Curve]:
    chance = random.Random(seed)
    values = [tuple(chance.random() for _ in range(6)) for _ in range(trials)]
    return [Curve(each, seed * trials + number) for number, each in enumerate(values)]


@dataclass
class Simulation:
    """One search: its trials on workers that take the next one as they get free."""

    curves: list[Curve]
    rungs: list[int] | None
    promotes: bool = True
    spent: int = 0
    """Units of training so far."""
    finished: list[tuple[int, float, float]] = field(default_factory=list)
    """Of each finished trial: units spent until then, its loss as measured, and without noise."""

    def run(self, workers: int) -> "Simulation":
        halving = Halving(AshaPruner(rungs=self.rungs or [UNITS]), UNITS, "minimize")
        reached = [0] * len(self.curves)
        order, fresh = count(), iter(range(len(self.curves)))
        free: list[tuple[float, int, int]] = []

        def start(now: float) -> None:
            number = halving.promote() if self.promotes else None
            if number is None:
                number = next(fresh, None)
                if number is None:
                    return
                halving.add(Trial(number, {}, TrialState.RUNNING))
            heapq.heappush(free, (now + self.curves[number].pace, next(order), number))

        for _ in range(workers):
            start(0.0)
        while free:
            now, _, number = heapq.heappop(free)
            reached[number] += 1
            self.spent += 1
            loss = self.curves[number].loss(reached[number])
            if halving.report(number, reached[number], loss).pauses:
                start(now)
            elif reached[number] == UNITS:
                self.finished.append((self.spent, loss, self.curves[number].true_loss()))
                halving.end(number)
                start(now)
            else:
                heapq.heappush(free, (now + self.curves[number].pace, next(order), number))
        return self

    def results(self) -> list[tuple[int, float]]:
        """Units spent, and the loss without noise of the trial that measured best until then: what
        a user gets who ends the search there. Only where it changes."""
        found, least = [], math.inf
        for units, measured, true in self.finished:
            if measured < least:
                least = measured
                found.append((units, true))
        return found

    def result(self, within: int | None = None) -> float:
        """After so many units; all of them by default."""
        losses = [loss for units, loss in self.results() if within is None or units <= within]
        return losses[-1] if losses else math.inf

    def units_to(self, loss: float) -> int | None:
        """Units spent until the result had at most this loss."""
        return next((units for units, found in self.results() if found <= loss), None)


def compare(seed: int, trials: int, workers: int) -> dict[str, Any]:
    given = curves(seed, trials)
    searches = {
        "random": Simulation(given, None).run(workers),
        "asha": Simulation(given, RUNGS).run(workers),
        "stops": Simulation(given, RUNGS, promotes=False).run(workers),
    }
    reference = searches["random"]
    ratios = {}
    for name, part in PARTS.items():
        target = reference.result(int(reference.spent * part)) + TOLERANCE
        mine, theirs = searches["asha"].units_to(target), reference.units_to(target)
        ratios[name] = 0.0 if mine is None or theirs is None else theirs / mine
    return {"searches": searches, "ratios": ratios}


def suggestion_ms(sampler: SamplerSpec, trials: int, rounds: int = 10) -> list[float]:
    """Of a search with so many complete trials over six fields."""
    from service.studies.study import Study

    space = {f"training.x{index}": Dimension(low=0.0, high=1.0) for index in range(6)}
    history = []
    for number, curve in enumerate(curves(1, trials)):
        values = dict(zip(space, curve.values, strict=True))
        history.append(Trial(number, values, TrialState.COMPLETE, [curve.loss(UNITS)]))
    study = Study(space, [Objective(metric="loss")], sampler, NoPruner(), history)
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        asked = study.ask()
        times.append(1000 * (time.perf_counter() - begun))
        study.end(asked.number, TrialState.COMPLETE, [1.5])
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=9)
    parser.add_argument("--parallel", type=int, default=8)
    parser.add_argument("--suggestions", type=int, metavar="TRIALS")
    options = parser.parse_args()
    if options.suggestions is not None:
        for sampler in (TpeSampler(), RandomSampler()):
            times = suggestion_ms(sampler, options.suggestions)
            print(
                f"{sampler.name:7} {options.suggestions:,} trials: median "
                f"{statistics.median(times):.1f} ms, slowest {max(times):.1f} ms"
            )
        return
    _print_comparison(options)


def _print_comparison(options: argparse.Namespace) -> None:
    found: dict[str, list[float]] = {name: [] for name in PARTS}
    for seed in range(1, options.seeds + 1):
        result = compare(seed, options.trials, options.parallel)
        searches = result["searches"]
        for name, ratio in result["ratios"].items():
            found[name].append(ratio)
        within = searches["asha"].spent
        print(
            f"seed {seed}: random within the units of asha: loss "
            f"{searches['random'].result(within):.4f}; "
            + "; ".join(
                f"{name} {each.spent:,} units, {len(each.finished)} finished, loss "
                f"{each.result():.4f}"
                for name, each in searches.items()
            )
        )
    for name, ratios in found.items():
        listed = ", ".join(f"{ratio:.1f}" for ratio in sorted(ratios))
        print(
            f"units of random search / of ASHA, to what {name} of random search finds: median "
            f"{statistics.median(ratios):.1f} ({listed})"
        )


if __name__ == "__main__":
    main()
