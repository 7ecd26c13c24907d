import json
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import optuna
import pytest

from service.contract.search.pruners import (
    AshaPruner,
    HyperbandPruner,
    MedianPruner,
    NoPruner,
    PatiencePruner,
    PrunerSpec,
)
from service.contract.search.samplers import (
    CmaEsSampler,
    GpSampler,
    GridSampler,
    NsgaIISampler,
    QmcSampler,
    RandomSampler,
    SamplerSpec,
    TpeSampler,
)
from service.contract.search.space import Dimension
from service.contract.search.states import TrialState
from service.studies.study import GridExhaustedError, Study
from tests.studies.searches import (
    LOSS,
    LOSS_AND_F1,
    SPACE,
    Search,
    curve,
    f1,
    loss,
    params,
    plain,
    plain_study,
    suggest,
)

Pair = tuple[SamplerSpec, Callable[[], Any]]

FAST: dict[str, Pair] = {
    "tpe": (
        TpeSampler(seed=1),
        lambda: plain("TPESampler", seed=1, multivariate=True, constant_liar=True),
    ),
    "tpe-group": (
        TpeSampler(seed=2, group=True, n_startup_trials=5, n_ei_candidates=10),
        lambda: plain(
            "TPESampler", seed=2, multivariate=True, group=True, n_startup_trials=5,
            n_ei_candidates=10,
        ),
    ),
    "tpe-fields-alone": (
        TpeSampler(seed=3, multivariate=False, constant_liar=False, prior_weight=2.0),
        lambda: plain(
            "TPESampler", seed=3, multivariate=False, constant_liar=False, prior_weight=2.0
        ),
    ),
    "random": (RandomSampler(seed=4), lambda: plain("RandomSampler", seed=4)),
    "cmaes": (CmaEsSampler(seed=5), lambda: plain("CmaEsSampler", seed=5)),
    "cmaes-options": (
        CmaEsSampler(
            seed=6, sigma0=0.3, popsize=4, n_startup_trials=3, consider_pruned_trials=True
        ),
        lambda: plain(
            "CmaEsSampler", seed=6, sigma0=0.3, popsize=4, n_startup_trials=3,
            consider_pruned_trials=True,
        ),
    ),
    "qmc": (QmcSampler(seed=7), lambda: plain("QMCSampler", seed=7)),
    "qmc-halton": (
        QmcSampler(seed=8, qmc_type="halton", scramble=True),
        lambda: plain("QMCSampler", seed=8, qmc_type="halton", scramble=True),
    ),
    "nsgaii": (
        NsgaIISampler(seed=9, population_size=5),
        lambda: plain("NSGAIISampler", seed=9, population_size=5),
    ),
    "nsgaii-options": (
        NsgaIISampler(
            seed=10, population_size=4, mutation_prob=0.3, crossover_prob=0.5, swapping_prob=0.4
        ),
        lambda: plain(
            "NSGAIISampler", seed=10, population_size=4, mutation_prob=0.3, crossover_prob=0.5,
            swapping_prob=0.4,
        ),
    ),
}  # fmt: skip
GP: Pair = (
    GpSampler(seed=11, n_startup_trials=4),
    lambda: plain("GPSampler", seed=11, n_startup_trials=4),
)

each_sampler = pytest.mark.parametrize("name", FAST)
whether_it_crashes = pytest.mark.parametrize("crashes", [False, True])
# What one object gives is shown by the faster samplers and for one objective.
seldom_without_crashes = pytest.mark.parametrize(
    "crashes", [pytest.param(False, marks=pytest.mark.heavy), True]
)


def optimized(pair: Pair, trials: int, *, before: list[dict[str, Any]] | None = None) -> Any:
    study = plain_study(pair[1]())
    for fixed in before or ():
        study.enqueue_trial(fixed)
    study.optimize(lambda trial: loss(suggest(trial)), n_trials=trials)
    return params(study)


def searched(search: Search, trials: int) -> list[dict[str, Any]]:
    for _ in range(trials):
        trial = search.ask()
        search.end(trial.number, TrialState.COMPLETE, [loss(trial.values)])
    return search.values


class TestOneTrialAfterTheOther:
    @each_sampler
    @whether_it_crashes
    def test_it_suggests_what_optimize_does(self, name: str, crashes: bool) -> None:
        search = Search(FAST[name][0], crashes=crashes)
        assert searched(search, 30) == optimized(FAST[name], 30)

    @seldom_without_crashes
    def test_gp(self, crashes: bool) -> None:
        assert searched(Search(GP[0], crashes=crashes), 8) == optimized(GP, 8)

    @pytest.mark.heavy
    @whether_it_crashes
    @pytest.mark.parametrize("deterministic", [False, True])
    def test_gp_for_long(self, crashes: bool, deterministic: bool) -> None:
        options = {"seed": 12, "deterministic_objective": deterministic}
        pair = (GpSampler(**options), lambda: plain("GPSampler", **options))
        assert searched(Search(pair[0], crashes=crashes), 30) == optimized(pair, 30)

    def test_seeds_differ(self) -> None:
        one, other = (Search(RandomSampler(seed=seed)) for seed in (1, 2))
        assert searched(one, 2) != searched(other, 2)


class TestGrid:
    SPACE: ClassVar[dict[str, Dimension]] = {
        "b": Dimension(low=1, high=5, step=2),
        "a": Dimension(low=0.1, high=0.35, step=0.1),
        "c": Dimension(choices=[True, None]),
    }

    @staticmethod
    def _plain() -> optuna.Study:
        grid: Any = {"a": [0.1, 0.2, 0.3], "b": [1, 3, 5], "c": [True, None]}
        return plain_study(optuna.samplers.GridSampler(grid, seed=13))

    @staticmethod
    def _suggest(trial: optuna.Trial) -> float:
        b = trial.suggest_int("b", 1, 5, step=2)
        a = trial.suggest_float("a", 0.1, 0.3, step=0.1)
        return a + b + bool(trial.suggest_categorical("c", [True, None]))

    @whether_it_crashes
    def test_each_combination_once(self, crashes: bool) -> None:
        plain = self._plain()
        plain.optimize(self._suggest)
        search = Search(GridSampler(seed=13), self.SPACE, crashes=crashes)
        for number in range(18):
            search.ask()
            search.end(number, TrialState.COMPLETE, [1.0])
        assert search.values == params(plain)
        assert len({tuple(values.items()) for values in search.values}) == 18
        with pytest.raises(GridExhaustedError):
            search.ask()

    @whether_it_crashes
    def test_enqueued_trials_cost_no_combination(self, crashes: bool) -> None:
        fixed = {"a": 0.2, "b": 3, "c": None}
        plain = self._plain()
        plain.enqueue_trial(fixed)
        plain.optimize(self._suggest)
        search = Search(GridSampler(seed=13), self.SPACE, crashes=crashes)
        for number in range(19):
            search.ask(None if number else fixed)
            if number == 4:
                search.end(number, TrialState.FAILED)
            else:
                search.end(number, TrialState.COMPLETE, [1.0])
        assert search.values == params(plain)
        with pytest.raises(GridExhaustedError):
            search.ask()

    def test_what_runs_is_not_given_again(self) -> None:
        search = Search(GridSampler(), {"a": Dimension(choices=[1, 2])})
        assert {search.ask().values["a"], search.ask().values["a"]} == {1, 2}
        with pytest.raises(GridExhaustedError):
            search.ask()

    def test_the_attributes_leave_out_the_grid(self) -> None:
        assert Search(GridSampler(), self.SPACE).ask().attrs == {"grid_id": 0}


class Plain:
    """`Search`, in plain Optuna's ask and tell."""

    def __init__(self, study: optuna.Study) -> None:
        self.study = study

    def ask(self) -> dict[str, Any]:
        return suggest(self.study.ask())

    def end(self, number: int, scores: list[float] | None) -> None:
        state = optuna.trial.TrialState.FAIL if scores is None else None
        self.study.tell(number, scores, state=state)


class Ours:
    def __init__(self, search: Search) -> None:
        self.search = search

    def ask(self) -> dict[str, Any]:
        return self.search.ask().values

    def end(self, number: int, scores: list[float] | None) -> None:
        state = TrialState.FAILED if scores is None else TrialState.COMPLETE
        self.search.end(number, state, scores)


def at_once(
    one: Plain | Ours, trials: int, scores: Callable[[Mapping[str, Any]], list[float]]
) -> None:
    """Up to four trials at once, which end in another order than they began; each ninth fails."""
    running: dict[int, list[float] | None] = {}
    for number in range(trials):
        values = one.ask()
        running[number] = None if number % 9 == 5 else scores(values)
        while len(running) > number % 4:
            first = sorted(running)[-1 if number % 3 == 0 else 0]
            one.end(first, running.pop(first))


class TestSeveralTrialsAtOnce:
    @each_sampler
    @whether_it_crashes
    def test_as_with_ask_and_tell(self, name: str, crashes: bool) -> None:
        spec, make = FAST[name]
        search, study = Search(spec, crashes=crashes), plain_study(make())
        for one in (Ours(search), Plain(study)):
            at_once(one, 30, lambda values: [loss(values)])
        assert search.values == params(study)

    @seldom_without_crashes
    def test_gp(self, crashes: bool) -> None:
        search, study = Search(GP[0], crashes=crashes), plain_study(GP[1]())
        for one in (Ours(search), Plain(study)):
            at_once(one, 9, lambda values: [loss(values)])
        assert search.values == params(study)


class TestSeveralObjectives:
    @pytest.mark.parametrize(
        ("pair", "trials"),
        [
            (FAST["tpe"], 30),
            (FAST["tpe-group"], 30),
            (FAST["nsgaii"], 30),
            (FAST["random"], 5),
            (FAST["qmc"], 10),
            (GP, 6),
        ],
        ids=["tpe", "tpe-group", "nsgaii", "random", "qmc", "gp"],
    )
    @seldom_without_crashes
    def test_they_too(self, pair: Pair, trials: int, crashes: bool) -> None:
        search = Search(pair[0], objectives=LOSS_AND_F1, crashes=crashes)
        study = plain_study(pair[1](), directions=["minimize", "maximize"])
        for one in (Ours(search), Plain(study)):
            at_once(one, trials, lambda values: [loss(values), f1(values)])
        assert search.values == params(study)


def pruned_by_optuna(study: optuna.Study, trials: int) -> None:
    def objective(trial: optuna.Trial) -> float:
        losses = curve(suggest(trial))
        for step, value in enumerate(losses, 1):
            trial.report(value, step)
            if trial.should_prune():
                raise optuna.TrialPruned
        return losses[-1]

    study.optimize(objective, n_trials=trials)


def pruned_by_us(search: Search, trials: int) -> None:
    for number in range(trials):
        losses = curve(search.ask().values)
        for step, value in enumerate(losses, 1):
            if search.report(number, step, value):
                search.end(number, TrialState.PRUNED)
                break
        else:
            search.end(number, TrialState.COMPLETE, [losses[-1]])


class TestPruning:
    @pytest.mark.parametrize(
        ("spec", "make"),
        [
            (MedianPruner(), lambda: plain("MedianPruner")),
            (
                MedianPruner(n_startup_trials=2, n_warmup=2, n_min_trials=3),
                lambda: plain("MedianPruner", n_startup_trials=2, n_warmup_steps=2, n_min_trials=3),
            ),
            (
                PatiencePruner(patience=1, min_delta=0.05),
                lambda: plain("PatientPruner", wrapped_pruner=None, patience=1, min_delta=0.05),
            ),
        ],
        ids=["median", "median-options", "patience"],
    )
    @pytest.mark.parametrize("name", ["tpe", "cmaes-options", "nsgaii"])
    @seldom_without_crashes
    def test_the_same_trials_end_at_the_same_step(
        self, spec: PrunerSpec, make: Callable[[], Any], name: str, crashes: bool
    ) -> None:
        study = plain_study(FAST[name][1](), make())
        pruned_by_optuna(study, 20)
        search = Search(FAST[name][0], pruner=spec, crashes=crashes)
        pruned_by_us(search, 20)
        assert search.values == params(study)
        assert [trial.reports for trial in search.trials] == [
            trial.intermediate_values for trial in study.trials
        ]
        assert [trial.state.name for trial in search.trials] == [
            trial.state.name for trial in study.trials
        ]
        assert 0 < sum(trial.state == TrialState.PRUNED for trial in search.trials) < 20

    def test_others_are_not_optunas(self) -> None:
        search = Search(RandomSampler(), pruner=AshaPruner())
        search.ask()
        assert not search.report(0, 1, 1e9)

    def test_the_first_report_at_a_step_counts(self) -> None:
        search = Search(RandomSampler(), pruner=PatiencePruner(patience=0))
        search.ask()
        assert not search.report(0, 1, 1.0)
        search.study.report(0, 1, 3.0)
        assert search.report(0, 2, 2.0)

    @pytest.mark.parametrize("name", ["tpe", "cmaes-options", "nsgaii", "qmc"])
    def test_optunas_samplers_do_not_see_the_brackets_of_hyperband(self, name: str) -> None:
        """If they do in a later version, `make_pruner` has to give them Optuna's pruner."""
        pruner = optuna.pruners.HyperbandPruner(min_resource=1, max_resource=6, reduction_factor=2)
        study = plain_study(FAST[name][1](), pruner)
        pruned_by_optuna(study, 30)
        search = Search(FAST[name][0], pruner=HyperbandPruner())
        for number, trial in enumerate(study.trials):
            search.ask()
            for step, value in trial.intermediate_values.items():
                search.report(number, step, value)
            state = TrialState[trial.state.name]
            search.end(number, state, trial.values if state == TrialState.COMPLETE else None)
        assert len(pruner._pruners) == 3
        assert search.values == params(study)


class TestPausing:
    """Optuna has nothing to compare with: what holds is that a crash changes nothing, and that a
    trial that was paused counts as any other once it is complete."""

    @each_sampler
    def test_a_crash_changes_nothing(self, name: str) -> None:
        one = self._run(name, crashes=False)
        other = self._run(name, crashes=True)
        assert one.values == other.values
        assert one.state == other.state

    @staticmethod
    def _run(name: str, *, crashes: bool) -> Search:
        search = Search(FAST[name][0], crashes=crashes, pruner=AshaPruner())
        for _ in range(8):
            kept, paused = search.ask(), search.ask()
            search.report(paused.number, 1, curve(paused.values)[0])
            search.end(paused.number, TrialState.PAUSED)
            search.end(kept.number, TrialState.COMPLETE, [loss(kept.values)])
            between = search.ask()
            if between.number % 2:
                search.resume(paused.number)
                search.report(paused.number, 2, curve(paused.values)[1])
                search.end(paused.number, TrialState.COMPLETE, [loss(paused.values)])
            else:
                search.end(paused.number, TrialState.PRUNED)
            search.end(between.number, TrialState.CANCELLED)
        return search

    def test_it_may_end_without_running_again(self) -> None:
        search = Search(RandomSampler(), pruner=AshaPruner())
        search.ask()
        search.end(0, TrialState.PAUSED)
        search.end(0, TrialState.COMPLETE, [1.0])
        with pytest.raises(ValueError, match="Cannot tell a COMPLETE trial"):
            search.end(0, TrialState.PRUNED)

    def test_its_fields_count_when_it_is_complete(self) -> None:
        """It lacks a field that all others have; the Gaussian process must not ask it for that."""
        space = {
            "a": Dimension(low=0.0, high=1.0),
            "b": Dimension(choices=[True, False]),
            "c": Dimension(low=0.0, high=1.0, when={"b": True}),
        }
        search = Search(GpSampler(n_startup_trials=3), space, pruner=AshaPruner())
        search.ask({"a": 0.5, "b": False})
        search.end(0, TrialState.PAUSED)
        for number in range(1, 5):
            search.ask({"b": True})
            search.end(number, TrialState.COMPLETE, [1.0 * number])
        search.resume(0)
        search.end(0, TrialState.COMPLETE, [0.5])
        assert search.ask({"b": True}).attrs["gp:relative_params:0"].startswith('{"a": ')


class TestFixedValues:
    FIXED: ClassVar[list[dict[str, Any]]] = [
        {"training.learning_rate": 1e-3, "training.batch_size": 16},
        {"training.optim": "sgd", "training.momentum": 0.9, "training.dropout": 0.2},
        # Its condition is not met.
        {"training.optim": "adam", "training.momentum": 0.9},
    ]

    @each_sampler
    @whether_it_crashes
    def test_the_sampler_chooses_the_others(self, name: str, crashes: bool) -> None:
        search = Search(FAST[name][0], crashes=crashes)
        for fixed in self.FIXED:
            trial = search.ask(fixed)
            search.end(trial.number, TrialState.COMPLETE, [loss(trial.values)])
        assert searched(search, 12) == optimized(FAST[name], 15, before=self.FIXED)
        assert "training.momentum" in search.values[1]
        assert "training.momentum" not in search.values[2]

    def test_a_number_outside_of_the_range_is_taken(self) -> None:
        """A template's own may be."""
        values = Search(TpeSampler()).ask({"training.learning_rate": 1.0}).values
        assert values["training.learning_rate"] == 1.0

    def test_a_choice_that_is_none_is_not(self) -> None:
        with pytest.raises(ValueError, match=r"'adagrad' is not one of the choices of training"):
            Search(TpeSampler()).ask({"training.optim": "adagrad"})


class TestState:
    @each_sampler
    def test_it_changes_with_suggestions_only(self, name: str) -> None:
        """So that a report writes one row, and an end one row."""
        search = Search(FAST[name][0])
        searched(search, 15)
        search.ask()
        state = json.dumps(search.state)
        search.report(15, 1, 1.0)
        search.end(15, TrialState.PAUSED)
        assert json.dumps(search.state) == state

    def test_the_number_of_trials(self) -> None:
        search = Search(RandomSampler())
        searched(search, 3)
        assert len(search.study) == 3

    def test_optuna_is_shown_the_same_trials_after_a_crash(self) -> None:
        search = Search(TpeSampler(n_startup_trials=2), pruner=MedianPruner())
        for number, state in enumerate([*TrialState, TrialState.PRUNED]):
            search.ask()
            search.report(number, 2, math.nan if number == 3 else 2.0)
            search.report(number, 1, 1.0)
            if state != TrialState.RUNNING:
                search.end(number, state, [1.0] if state == TrialState.COMPLETE else None)
        kept, again = (
            [vars(it) for it in self._shown(study)]
            for study in (
                search.study,
                Study(SPACE, LOSS, search.sampler, search.pruner, search.trials),
            )
        )
        assert kept == again
        assert [it["_values"] for it in kept] == [None, [2.0], [1.0], None, None, None, [2.0]]

    @staticmethod
    def _shown(study: Study) -> list[optuna.trial.FrozenTrial]:
        trials = study._study.get_trials()
        for trial in trials:
            trial.datetime_start = trial.datetime_complete = None
        return trials

    def test_trials_without_gaps(self) -> None:
        search = Search(RandomSampler())
        searched(search, 2)
        with pytest.raises(ValueError, match="trial 1 comes where 0 is expected"):
            Study(SPACE, LOSS, RandomSampler(), NoPruner(), search.trials[1:])

    def test_complete_trials_have_scores(self) -> None:
        search = Search(RandomSampler())
        searched(search, 1)
        search.trials[0].scores = None
        with pytest.raises(ValueError, match="trial 0 is complete and has no scores"):
            Study(SPACE, LOSS, RandomSampler(), NoPruner(), search.trials)
