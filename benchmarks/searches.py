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

`--samplers tpe,random` compares the suggestions of the service, which makes a sampler for each
trial, with those of Optuna's own loop, which keeps one: over seven functions, `--trials` trials and
`--seeds` seeds each, and whether the trials are the same if the search is read anew before every
third of them.
"""

import argparse
import heapq
import logging
import math
import random
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

from service.contract.search.objectives import Objective
from service.contract.search.pruners import AshaPruner, MedianPruner, NoPruner
from service.contract.search.samplers import (
    GpSampler,
    NsgaIISampler,
    QmcSampler,
    RandomSampler,
    SamplerSpec,
    TpeSampler,
)
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


def _rate(values: Mapping[str, Any]) -> float:
    return float((math.log10(values["rate"]) + 3) ** 2) / 4


def _quadratic(values: Mapping[str, Any]) -> float:
    a, b = float(values["a"]), float(values["b"])
    return float((a - 0.3) ** 2 + 2 * (b - 0.7) ** 2) + _rate(values)


def _choices(values: Mapping[str, Any]) -> float:
    optim = {"sgd": 0.5, "adam": 0.0, "lion": 0.2}[values["optim"]]
    return _rate(values) + optim + abs(int(values["batch"]) - 32) / 64


def _conditional(values: Mapping[str, Any]) -> float:
    if values["optim"] == "sgd":
        return _rate(values) + 0.6 - 0.6 * float(values["momentum"])
    return _rate(values) + 0.3 + 50 * float(values["beta"] - 0.98) ** 2


def _ackley(values: Mapping[str, Any]) -> float:
    at = [8 * (values[name] - 0.4) for name in ("a", "b")]
    away = -20 * math.exp(-0.2 * math.hypot(*at) / math.sqrt(2))
    waves = math.exp(sum(math.cos(2 * math.pi * each) for each in at) / 2)
    return away - waves + 20 + math.e


def _rosenbrock(values: Mapping[str, Any]) -> float:
    x, y = 4 * values["a"] - 2, 4 * values["b"] - 1
    return math.log1p((1 - x) ** 2 + 100 * (y - x * x) ** 2)


_UNIT: Final = Dimension(low=0.0, high=1.0)
_RATE: Final = Dimension(low=1e-5, high=1e-1, log=True)
_AB: Final = {"a": _UNIT, "b": _UNIT}
_OPTIM: Final = Dimension(choices=["sgd", "adam", "lion"])
FUNCTIONS: Final[
    Mapping[str, tuple[Callable[[Mapping[str, Any]], float], dict[str, Dimension]]]
] = {
    "quadratic": (_quadratic, {**_AB, "rate": _RATE}),
    "noise": (_quadratic, {**_AB, "rate": _RATE}),
    "pruned": (_quadratic, {**_AB, "rate": _RATE}),
    "choices": (
        _choices,
        {"rate": _RATE, "optim": _OPTIM, "batch": Dimension(low=8, high=64, step=8)},
    ),
    "conditional": (
        _conditional,
        {
            "rate": _RATE,
            "optim": Dimension(choices=["sgd", "adam"]),
            "momentum": Dimension(low=0.0, high=0.99, when={"optim": "sgd"}),
            "beta": Dimension(low=0.9, high=0.999, when={"optim": "adam"}),
        },
    ),
    "ackley": (_ackley, _AB),
    "rosenbrock": (_rosenbrock, _AB),
}
SAMPLERS: Final[Mapping[str, tuple[SamplerSpec, str, dict[str, Any]]]] = {
    "tpe": (TpeSampler(), "TPESampler", {"multivariate": True, "constant_liar": True}),
    "random": (RandomSampler(), "RandomSampler", {}),
    "qmc": (QmcSampler(scramble=True), "QMCSampler", {"scramble": True}),
    "nsgaii": (NsgaIISampler(population_size=10), "NSGAIISampler", {"population_size": 10}),
    "gp": (GpSampler(), "GPSampler", {}),
}


@dataclass
class FunctionSearch:
    """A function as a search sees it."""

    name: str
    seed: int

    def losses(self, number: int, values: Mapping[str, Any]) -> list[float]:
        """At five evaluations where trials are pruned, else the last one."""
        loss = FUNCTIONS[self.name][0](values)
        if self.name == "noise":
            loss += random.Random(self.seed * 1000 + number).gauss(0, 0.05)
        return [loss + 2 / step for step in range(1, 6)] if self.name == "pruned" else [loss]

    def best(self, found: Sequence[tuple[float, Mapping[str, Any]]]) -> float:
        """Without noise, of the trial that measured best."""
        return FUNCTIONS[self.name][0](min(found, key=lambda each: each[0])[1])

    def fresh(self, sampler: SamplerSpec, trials: int, *, crashes: bool) -> tuple[list[Any], float]:
        """By the service: the values of all trials, and the best loss. `crashes`: before every
        third trial."""
        from service.studies.study import Study

        spec = sampler.model_copy(update={"seed": self.seed})
        pruner = MedianPruner() if self.name == "pruned" else NoPruner()

        def made(history: list[Trial]) -> Study:
            space = FUNCTIONS[self.name][1]
            return Study(space, [Objective(metric="loss")], spec, pruner, history)

        study = made([])
        for number in range(trials):
            if crashes and number % 3 == 2:
                study = made(deepcopy(study.trials))
            losses = self.losses(number, study.ask().values)
            for step, loss in enumerate(losses):
                study.report(number, step, loss)
                if self.name == "pruned" and study.should_prune(number):
                    study.end(number, TrialState.PRUNED)
                    break
            else:
                study.end(number, TrialState.COMPLETE, losses[-1:])
        done = [(trial.scores[0], trial.values) for trial in study.trials if trial.scores]
        return [trial.values for trial in study.trials], self.best(done)

    def kept(self, sampler: str, options: dict[str, Any], trials: int) -> float:
        """By Optuna's own loop, with one sampler for all trials."""
        import optuna

        from service.studies.parameters import parameters_of

        parameters = parameters_of(FUNCTIONS[self.name][1])
        pruner = optuna.pruners.MedianPruner() if self.name == "pruned" else None

        def objective(trial: Any) -> float:
            values: dict[str, Any] = {}
            for path, parameter in parameters.items():
                if parameter.dimension.is_met(values):
                    values[path] = parameter.suggested(trial)
            losses = self.losses(trial.number, values)
            for step, loss in enumerate(losses):
                trial.report(loss, step)
                if self.name == "pruned" and trial.should_prune():
                    raise optuna.TrialPruned
            return losses[-1]

        study = optuna.create_study(
            sampler=getattr(optuna.samplers, sampler)(seed=self.seed, **options),
            pruner=pruner or optuna.pruners.NopPruner(),
        )
        study.optimize(objective, trials)
        complete = study.get_trials(states=(optuna.trial.TrialState.COMPLETE,))
        return self.best([(float(trial.value or 0), trial.params) for trial in complete])


def _print_samplers(names: Sequence[str], trials: int, seeds: int) -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    for sampler in names:
        spec, plain, options = SAMPLERS[sampler]
        for turn, name in enumerate(FUNCTIONS):
            # Other seeds for each function: else they would all share the luck of one.
            searches = [FunctionSearch(name, 1000 * turn + seed) for seed in range(seeds)]
            fresh = [each.fresh(spec, trials, crashes=False) for each in searches]
            crashed = [each.fresh(spec, trials, crashes=True)[0] for each in searches]
            kept = [each.kept(plain, options, trials) for each in searches]
            same = sum(one[0] == other for one, other in zip(fresh, crashed, strict=True))
            print(
                f"{sampler:7} {name:12} the same after crashes: {same} of {seeds}; median best "
                f"{statistics.median(best for _, best in fresh):.4f}, with one sampler kept "
                f"{statistics.median(kept):.4f}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=9)
    parser.add_argument("--parallel", type=int, default=8)
    parser.add_argument("--suggestions", type=int, metavar="TRIALS")
    parser.add_argument("--samplers", metavar="NAMES")
    options = parser.parse_args()
    if options.samplers is not None:
        _print_samplers(options.samplers.split(","), options.trials, options.seeds)
        return
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
