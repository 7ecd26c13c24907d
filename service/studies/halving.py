"""Successive halving that pauses trials and promotes them (Li et al. 2020, algorithm 2), in one
bracket (ASHA) or several (Li et al. 2018, Hyperband).

A trial that reaches a rung is compared with all that have reached it, itself included. One of the
best n / reduction_factor continues at once; so does the best of fewer than reduction_factor. The
others are paused. As more trials arrive the best places become more, and a paused trial that gets
one of them is promoted. Failed and cancelled trials keep their places.

Two rules differ in ties. On arrival an equal value is as good as the last of the best, as Optuna's
`SuccessiveHalvingPruner` decides. For a promotion the trial with the smaller number is better, so
that equal values do not promote everybody. NaN never continues and takes no place, also as there.

Nothing depends on the order of past reports: what was decided is in the states of the trials.
"""

import math
from bisect import bisect_left, insort
from dataclasses import dataclass, field
from itertools import takewhile

from service.contract.search.objectives import Direction
from service.contract.search.states import TrialState
from service.studies.history import Trial
from service.studies.rungs import Brackets, HalvingPruner, rung_levels

_Place = tuple[float, int]
"""Value and number of a trial at a rung. The smaller is the better."""


@dataclass(frozen=True)
class Verdict:
    """What an evaluation means for its trial."""

    levels: tuple[int, ...]
    """The rungs it completes. Each belongs in `Trial.reports`, with the value."""
    pauses: bool


class Halving:
    """The decisions of one search. Build it from the trials so far, by `add`."""

    def __init__(
        self, pruner: HalvingPruner, total: int | None, goal: Direction, every: int = 1
    ) -> None:
        """`total` and `every` as `rung_levels` takes them."""
        levels = rung_levels(pruner, total, every)
        self._sign = -1.0 if goal == "maximize" else 1.0
        self._which = Brackets(len(levels), pruner.reduction_factor)
        self._brackets = [_Bracket(each, pruner.reduction_factor) for each in levels]
        self._trials: dict[int, _Progress] = {}
        rungs = [(bracket, place) for bracket in self._brackets for place in range(len(bracket))]
        # The longest trained first, as it takes the least to end them.
        self._from_the_top = sorted(rungs, key=lambda rung: -rung[0].rungs[rung[1]].level)

    def add(self, trial: Trial) -> None:
        """A new trial, or one of the history as it is."""
        progress = _Progress(self._brackets[self._which.bracket_of(trial.number)], trial.number)
        self._trials[trial.number] = progress
        for rung in takewhile(lambda rung: rung.level in trial.reports, progress.bracket.rungs):
            progress.arrive(rung, self._sign * trial.reports[rung.level])
        if trial.state is TrialState.PAUSED:
            progress.pause()
        elif trial.is_over:
            progress.end()

    def report(self, number: int, resource: float, value: float) -> Verdict:
        """The trial was evaluated after this resource. A rung counts once. While the trial is
        paused nothing counts: it comes to the same evaluations again once it is promoted."""
        progress, levels = self._trials[number], []
        while (rung := progress.next_rung) is not None and resource >= rung.level:
            levels.append(rung.level)
            progress.arrive(rung, self._sign * value)
            if not rung.is_among_the_best(self._sign * value):
                progress.pause()
        return Verdict(tuple(levels), progress.is_paused)

    def promote(self) -> int | None:
        """The paused trial that should continue now, if there is room; None: make a new one."""
        for bracket, place in self._from_the_top:
            number = bracket.rungs[place].promotable()
            if number is not None:
                self._trials[number].resume()
                return number
        return None

    def rescue(self) -> int | None:
        """The paused trial that was trained the longest, and of these the best, although it has no
        place: for a search whose promoted trials have all failed. It continues now."""
        for bracket, place in self._from_the_top:
            number = bracket.rungs[place].best_paused()
            if number is not None:
                self._trials[number].resume()
                return number
        return None

    def end(self, number: int) -> None:
        """The trial is over, for whatever reason. Its places remain."""
        self._trials[number].end()

    def hopeless(self, still_to_come: int) -> list[int]:
        """Paused trials that nothing can promote any more: the places they lack would not be
        there even if `still_to_come` new trials, and all that run, reached their rung with worse
        values. When none is to come, none runs and none is promotable, these are all.

        To end them changes no later decision, unless more trials come than were announced.
        """
        made = len(self._trials)
        coming = self._which.among(range(made, made + still_to_come))
        return [
            number
            for bracket, new in zip(self._brackets, coming, strict=True)
            for number in bracket.hopeless(new)
        ]


class _Rung:
    def __init__(self, level: int, reduction_factor: int) -> None:
        self.level = level
        self._reduction_factor = reduction_factor
        self._ranking: list[_Place] = []
        self._paused: list[_Place] = []
        self._paused_with_nan: list[int] = []

    def add(self, place: _Place) -> None:
        if not math.isnan(place[0]):
            insort(self._ranking, place)

    def is_among_the_best(self, value: float) -> bool:
        """Of a trial that has its place."""
        if math.isnan(value):
            return False
        return value <= self._ranking[max(1, self._best_places()) - 1][0]

    def pause(self, place: _Place) -> None:
        if math.isnan(place[0]):
            self._paused_with_nan.append(place[1])
        else:
            insort(self._paused, place)

    def resume(self, place: _Place) -> None:
        if math.isnan(place[0]):
            self._paused_with_nan.remove(place[1])
        else:
            del self._paused[bisect_left(self._paused, place)]

    def promotable(self) -> int | None:
        """The best paused trial, if it is among the best by now. That needs no `max(1, …)` as on
        arrival: the best of all never waits, because it continued when it arrived."""
        if self._paused and self._paused[0] < self._ranking[self._best_places()]:
            return self._paused[0][1]
        return None

    def best_paused(self) -> int | None:
        return self._paused[0][1] if self._paused else None

    def hopeless(self, arrivals: int) -> list[int]:
        """Paused trials that are not promotable even after this many arrivals."""
        places = self._best_places(arrivals)
        if places >= len(self._ranking):
            return self._paused_with_nan.copy()
        first = bisect_left(self._paused, self._ranking[places])
        return self._paused_with_nan + [number for _, number in self._paused[first:]]

    @property
    def paused_count(self) -> int:
        return len(self._paused) + len(self._paused_with_nan)

    def _best_places(self, arrivals: int = 0) -> int:
        return (len(self._ranking) + arrivals) // self._reduction_factor


class _Bracket:
    def __init__(self, levels: list[int], reduction_factor: int) -> None:
        self.rungs = [_Rung(level, reduction_factor) for level in levels]
        self.running = [0] * (len(levels) + 1)
        """How many trials run, by the rungs they have behind them."""

    def __len__(self) -> int:
        return len(self.rungs)

    def hopeless(self, coming: int) -> list[int]:
        found = []
        arrivals = coming
        for rung, running in zip(self.rungs, self.running, strict=False):
            arrivals += running
            lost = rung.hopeless(arrivals)
            found += lost
            arrivals += rung.paused_count - len(lost)
        return found


@dataclass
class _Progress:
    """Where a trial is. `bracket` and its rungs are kept in step."""

    bracket: _Bracket
    number: int
    is_paused: bool = False
    is_over: bool = False
    _values: list[float] = field(default_factory=list)
    """At the rungs that are behind it."""

    def __post_init__(self) -> None:
        self.bracket.running[0] += 1

    @property
    def next_rung(self) -> _Rung | None:
        """The rung that it reaches next, while it runs."""
        behind = len(self._values)
        if self.is_paused or self.is_over or behind == len(self.bracket):
            return None
        return self.bracket.rungs[behind]

    def arrive(self, rung: _Rung, value: float) -> None:
        rung.add((value, self.number))
        self.bracket.running[len(self._values)] -= 1
        self._values.append(value)
        self.bracket.running[len(self._values)] += 1

    def pause(self) -> None:
        self.is_paused = True
        self.bracket.running[len(self._values)] -= 1
        self._last_rung.pause(self._last_place)

    def resume(self) -> None:
        self.is_paused = False
        self.bracket.running[len(self._values)] += 1
        self._last_rung.resume(self._last_place)

    def end(self) -> None:
        if self.is_paused:
            self.resume()
        if not self.is_over:
            self.bracket.running[len(self._values)] -= 1
        self.is_over = True

    @property
    def _last_rung(self) -> _Rung:
        return self.bracket.rungs[len(self._values) - 1]

    @property
    def _last_place(self) -> _Place:
        return self._values[-1], self.number
