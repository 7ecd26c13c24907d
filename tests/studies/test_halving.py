"""Successive halving with pause and promotion; Optuna's only stops."""

import random
from collections.abc import Iterator

import optuna
import pytest

from benchmarks import searches
from service.contract.search.objectives import Direction
from service.contract.search.pruners import AshaPruner, HyperbandPruner
from service.contract.search.states import TrialState
from service.studies.halving import Halving
from service.studies.history import Trial
from service.studies.rungs import Brackets, rung_levels

NAN = float("nan")


def started(halving: Halving, number: int) -> None:
    halving.add(Trial(number, {}))


class TestArrival:
    @pytest.mark.parametrize("direction", ["minimize", "maximize"])
    @pytest.mark.parametrize("factor", [2, 3, 4])
    def test_pauses_where_optuna_prunes(self, direction: Direction, factor: int) -> None:
        """At the first rung, whatever the order, with ties and NaN."""
        for seed in range(60):
            chance = random.Random(seed)
            values = [chance.choice([NAN, 0.1, 0.2, 0.3, chance.random()]) for _ in range(25)]
            halving = Halving(
                AshaPruner(min_resource=1, reduction_factor=factor), total=2, goal=direction
            )
            ours = []
            for number, value in enumerate(values):
                started(halving, number)
                ours.append(halving.report(number, 1, value).pauses)
            assert ours == list(_optuna_prunes(values, direction, factor))

    def test_a_rung_counts_once(self) -> None:
        halving = Halving(AshaPruner(rungs=[10, 30]), 90, "maximize", 10)
        started(halving, 0)
        assert halving.report(0, 10, 0.5).levels == (10,)
        assert halving.report(0, 10, 0.9).levels == ()
        assert halving.report(0, 20, 0.9).levels == ()
        assert halving.report(0, 40, 0.9).levels == (30,)
        assert halving.report(0, 90, 0.9).levels == ()

    def test_one_evaluation_may_complete_several_rungs(self) -> None:
        halving = Halving(AshaPruner(rungs=[10, 30]), 90, "minimize")
        started(halving, 0)
        assert halving.report(0, 45, 0.5).levels == (10, 30)

    def test_what_a_paused_trial_reports_does_not_count(self) -> None:
        halving = Halving(AshaPruner(rungs=[10, 30]), 90, "minimize", 10)
        for number, value in enumerate((0.1, 0.2)):
            started(halving, number)
            halving.report(number, 10, value)
        assert halving.report(1, 30, 0.0).levels == ()
        assert halving.report(1, 30, 0.0).pauses

    def test_nor_does_what_one_reports_that_is_over(self) -> None:
        halving = Halving(AshaPruner(rungs=[10, 30]), 90, "minimize", 10)
        started(halving, 0)
        halving.end(0)
        assert halving.report(0, 30, 0.0).levels == ()


def _optuna_prunes(values: list[float], direction: Direction, factor: int) -> Iterator[bool]:
    pruner = optuna.pruners.SuccessiveHalvingPruner(
        min_resource=1, reduction_factor=factor, min_early_stopping_rate=0
    )
    study = optuna.create_study(direction=direction, pruner=pruner)
    for value in values:
        trial = study.ask()
        trial.report(value, 1)
        yield trial.should_prune()


class TestPromotion:
    def test_of_the_best_third_once_there_are_three(self) -> None:
        halving = Halving(AshaPruner(rungs=[1]), 9, "minimize")
        arrivals = [0.5, 0.6, 0.7, 0.8, 0.9]
        for number, value in enumerate(arrivals):
            started(halving, number)
            halving.report(number, 1, value)
        assert halving.promote() is None  # one place of five, and the first has it
        started(halving, 5)
        halving.report(5, 1, 1.0)
        assert halving.promote() == 1
        assert halving.promote() is None

    def test_from_the_highest_rung_first(self) -> None:
        halving = Halving(AshaPruner(rungs=[1, 3]), 9, "maximize")
        for number in range(12):
            started(halving, number)
            halving.report(number, 1, 12 - number)
        # Places of twelve: four, and the first continued at once.
        assert [halving.promote() for _ in range(3)] == [1, 2, 3]
        halving.report(0, 3, 0.9)
        for number, value in ((1, 0.8), (2, 0.7), (3, 0.6)):
            halving.report(number, 3, value)
        halving.add(Trial(12, {}, reports={1: 11.5, 3: 0.5}, state=TrialState.PAUSED))
        halving.add(Trial(13, {}, reports={1: 11.4, 3: 0.4}, state=TrialState.PAUSED))
        assert halving.promote() == 1

    def test_of_equal_values_the_earlier_trial(self) -> None:
        halving = Halving(AshaPruner(rungs=[1], reduction_factor=2), 9, "minimize")
        halving.add(Trial(0, {}, reports={1: 0.1}))
        for number in (2, 1, 3):
            halving.add(Trial(number, {}, reports={1: 0.5}, state=TrialState.PAUSED))
        assert [halving.promote(), halving.promote()] == [1, None]

    def test_nan_is_never_promoted(self) -> None:
        halving = Halving(AshaPruner(rungs=[1], reduction_factor=2), 9, "minimize")
        for number in range(6):
            halving.add(Trial(number, {}, reports={1: NAN}, state=TrialState.PAUSED))
        assert halving.promote() is None
        assert sorted(halving.hopeless(100)) == list(range(6))


class TestRescue:
    def test_the_best_of_the_highest_rung_continues_without_a_place(self) -> None:
        halving = Halving(AshaPruner(rungs=[1, 3]), 9, "minimize")
        halving.add(Trial(0, {}, reports={1: 0.1, 3: 0.1}, state=TrialState.FAILED))
        halving.add(Trial(1, {}, reports={1: 0.2, 3: 0.3}, state=TrialState.PAUSED))
        halving.add(Trial(2, {}, reports={1: 0.3, 3: 0.2}, state=TrialState.PAUSED))
        halving.add(Trial(3, {}, reports={1: 0.15}, state=TrialState.PAUSED))
        assert halving.promote() is None
        assert [halving.rescue() for _ in range(4)] == [2, 1, 3, None]


class TestHopeless:
    def test_what_no_arrival_can_help(self) -> None:
        halving = Halving(AshaPruner(rungs=[1]), 9, "minimize")
        for number in range(6):
            started(halving, number)
            halving.report(number, 1, number / 10)
        # Of nine three are promoted at most, of twelve four.
        assert sorted(halving.hopeless(3)) == [3, 4, 5]
        assert sorted(halving.hopeless(6)) == [4, 5]

    def test_all_that_wait_when_nothing_more_comes(self) -> None:
        halving = Halving(AshaPruner(rungs=[1]), 9, "minimize")
        for number in range(5):
            started(halving, number)
            halving.report(number, 1, number / 10)
        halving.end(0)
        assert sorted(halving.hopeless(0)) == [1, 2, 3, 4]

    @pytest.mark.parametrize("pruner", [AshaPruner(rungs=[1, 3, 9]), HyperbandPruner()])
    def test_ending_them_early_changes_no_decision(
        self, pruner: AshaPruner | HyperbandPruner
    ) -> None:
        for seed in range(25):
            late = _Search(pruner, seed, ends_early=False).run()
            assert _Search(pruner, seed, ends_early=True).run() == late


class TestRebuilt:
    @pytest.mark.parametrize("pruner", [AshaPruner(rungs=[1, 3, 9]), HyperbandPruner()])
    def test_from_the_trials_it_decides_the_same(
        self, pruner: AshaPruner | HyperbandPruner
    ) -> None:
        for seed in range(10):
            whole = _Search(pruner, seed, ends_early=True).run()
            assert _Search(pruner, seed, ends_early=True, forgets=True).run() == whole


class _Search:
    """60 trials of 27 steps, 4 at once, whose steps come in a random order."""

    def __init__(
        self,
        pruner: AshaPruner | HyperbandPruner,
        seed: int,
        *,
        ends_early: bool,
        forgets: bool = False,
    ) -> None:
        self._pruner = pruner
        self._chance = random.Random(seed)
        self._ends_early = ends_early
        self._forgets = forgets
        self._halving = Halving(pruner, 27, "minimize")
        self._trials: list[Trial] = []
        self._steps: list[int] = []
        self._levels: list[float] = []
        self.decisions: list[tuple[str, int]] = []

    def run(self) -> list[tuple[str, int]]:
        running: list[int] = []
        while True:
            while len(running) < 4 and (number := self._next()) is not None:
                running.append(number)
            if not running:
                return self.decisions
            number = self._chance.choice(running)
            if not self._step(number):
                running.remove(number)

    def _next(self) -> int | None:
        if self._forgets:
            self._halving = Halving(self._pruner, 27, "minimize")
            for trial in self._trials:
                self._halving.add(trial)
        if self._ends_early:
            for lost in self._halving.hopeless(60 - len(self._trials)):
                self._halving.end(lost)
                self._trials[lost].state = TrialState.PRUNED
        number = self._halving.promote()
        if number is not None:
            self._trials[number].state = TrialState.RUNNING
            self.decisions.append(("promoted", number))
            return number
        if len(self._trials) == 60:
            return None
        self._trials.append(Trial(len(self._trials), {}))
        self._steps.append(0)
        self._levels.append(self._chance.random())
        self._halving.add(self._trials[-1])
        return len(self._trials) - 1

    def _step(self, number: int) -> bool:
        """Whether the trial still runs."""
        self._steps[number] += 1
        step, trial = self._steps[number], self._trials[number]
        value = self._levels[number] + 1 / step + random.Random(1000 * number + step).random() / 9
        verdict = self._halving.report(number, step, value)
        trial.reports |= dict.fromkeys(verdict.levels, value)
        if verdict.pauses:
            trial.state = TrialState.PAUSED
            self.decisions.append(("paused", number))
        elif step == 27:
            trial.state = TrialState.COMPLETE
            self._halving.end(number)
            self.decisions.append(("complete", number))
        return trial.state is TrialState.RUNNING


class TestRungs:
    def test_of_asha(self) -> None:
        assert rung_levels(AshaPruner(min_resource=10), 100) == [[10, 30, 90]]
        assert rung_levels(AshaPruner(min_resource=10), 90) == [[10, 30]]
        assert rung_levels(AshaPruner(rungs=[5, 50, 500]), 100) == [[5, 50]]
        assert rung_levels(AshaPruner(min_early_stopping_rate=1), 100, 10) == [[30, 90]]
        assert len(rung_levels(AshaPruner(), None)[0]) == 20  # up to what a column holds

    def test_that_share_an_evaluation_are_one(self) -> None:
        assert rung_levels(AshaPruner(rungs=[10, 30, 60, 120]), 300, 100) == [[10, 120]]

    def test_of_hyperband(self) -> None:
        pruner = HyperbandPruner(min_resource=1, max_resource=27)
        assert rung_levels(pruner, 27) == [[1, 3, 9], [3, 9], [9], []]

    def test_of_hyperband_before_anybody_knows_the_whole(self) -> None:
        """One bracket, as of a whole that is less than the first rung."""
        [levels] = rung_levels(HyperbandPruner(min_resource=10), None)
        assert levels[:3] == [10, 30, 90]
        assert rung_levels(HyperbandPruner(min_resource=10), 5) == [[]]

    @pytest.mark.parametrize("whole", [3, 27])
    def test_brackets_are_optunas(self, whole: int) -> None:
        pruner = optuna.pruners.HyperbandPruner(
            min_resource=1, max_resource=whole, reduction_factor=3
        )
        study = optuna.create_study(study_name="search", pruner=pruner)
        theirs = []
        for _ in range(200):
            trial = study.ask()
            trial.report(0.5, 1)
            trial.should_prune()
            theirs.append(pruner._get_bracket_id(study, study.trials[trial.number]))
        count = len(rung_levels(HyperbandPruner(max_resource=whole), whole))
        brackets = Brackets(count, 3)
        assert [brackets.bracket_of(number) for number in range(200)] == theirs
        assert list(brackets.among(range(50, 200))) == [
            theirs[50:].count(bracket) for bracket in range(count)
        ]


def test_finds_what_random_search_finds_with_a_third_of_the_training() -> None:
    """The benchmark in small: simulated curves, eight workers."""
    found = searches.compare(seed=3, trials=400, workers=8)
    asha, reference = found["searches"]["asha"], found["searches"]["random"]
    assert reference.spent == 400 * searches.UNITS
    assert asha.result() <= reference.result() + searches.TOLERANCE
    assert found["ratios"]["all"] >= 3
