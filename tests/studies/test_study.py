"""A suggestion follows from the trials before it, the seed and its number; whoever made them."""

import math
from collections.abc import Callable
from statistics import median
from typing import Any, ClassVar

import optuna
import pytest

from service.contract.search.pruners import (
    AshaPruner,
    MedianPruner,
    NoPruner,
    PatiencePruner,
    PrunerSpec,
)
from service.contract.search.samplers import (
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
from tests.studies.searches import LOSS, LOSS_AND_F1, SPACE, Search, curve, f1, loss

SAMPLERS: dict[str, SamplerSpec] = {
    "tpe": TpeSampler(seed=1),
    "tpe-group": TpeSampler(seed=2, group=True, n_startup_trials=5, n_ei_candidates=10),
    "tpe-fields-alone": TpeSampler(
        seed=3, multivariate=False, constant_liar=False, prior_weight=2.0
    ),
    "random": RandomSampler(seed=4),
    "qmc": QmcSampler(seed=7),
    "qmc-options": QmcSampler(seed=8, qmc_type="halton", scramble=True),
    "nsgaii": NsgaIISampler(seed=9, population_size=5),
}
GP = GpSampler(seed=10, n_startup_trials=4)

each_sampler = pytest.mark.parametrize("name", SAMPLERS)


def at_once(search: Search, trials: int) -> None:
    """Up to four trials at once, which end in another order than they began; each ninth fails."""
    running: dict[int, list[float] | None] = {}
    several = len(search.objectives) > 1
    for number in range(trials):
        values = search.study.ask().values
        scores = [loss(values), f1(values)] if several else [loss(values)]
        running[number] = None if number % 9 == 5 else scores
        while len(running) > number % 4:
            first = sorted(running)[-1 if number % 3 == 0 else 0]
            found = running.pop(first)
            state = TrialState.FAILED if found is None else TrialState.COMPLETE
            search.study.end(first, state, found)


def pruned(search: Search, trials: int) -> None:
    for number in range(trials):
        losses = curve(search.study.ask().values)
        for step, value in enumerate(losses, 1):
            if search.report(number, step, value):
                search.study.end(number, TrialState.PRUNED)
                break
        else:
            search.study.end(number, TrialState.COMPLETE, [losses[-1]])


def paused(search: Search, rounds: int) -> None:
    for _ in range(rounds):
        kept, waits = search.study.ask(), search.study.ask()
        search.report(waits.number, 1, curve(waits.values)[0])
        search.study.end(waits.number, TrialState.PAUSED)
        search.study.end(kept.number, TrialState.COMPLETE, [loss(kept.values)])
        between = search.study.ask()
        if between.number % 2:
            search.study.resume(waits.number)
            search.report(waits.number, 2, curve(waits.values)[1])
            search.study.end(waits.number, TrialState.COMPLETE, [loss(waits.values)])
        else:
            search.study.end(waits.number, TrialState.PRUNED)
        search.study.end(between.number, TrialState.CANCELLED)


class TestCrashes:
    """Before every step."""

    @each_sampler
    def test_several_trials_at_once(self, name: str) -> None:
        self._same(SAMPLERS[name], lambda search: at_once(search, 30))

    @each_sampler
    def test_paused_trials(self, name: str) -> None:
        self._same(SAMPLERS[name], lambda search: paused(search, 8), pruner=AshaPruner())

    @each_sampler
    def test_values_that_are_fixed(self, name: str) -> None:
        def with_fixed(search: Search) -> None:
            for number in range(15):
                search.complete({"training.optim": "sgd"} if number % 4 == 0 else None)

        self._same(SAMPLERS[name], with_fixed)

    @pytest.mark.parametrize("name", ["tpe", "tpe-group", "nsgaii", "qmc"])
    def test_several_objectives(self, name: str) -> None:
        self._same(SAMPLERS[name], lambda search: at_once(search, 30), objectives=LOSS_AND_F1)

    @pytest.mark.parametrize("name", ["tpe", "nsgaii"])
    @pytest.mark.parametrize(
        "pruner", [MedianPruner(), PatiencePruner(patience=1, min_delta=0.05)], ids=["median", ""]
    )
    def test_pruned_trials(self, name: str, pruner: PrunerSpec) -> None:
        search = self._same(SAMPLERS[name], lambda search: pruned(search, 20), pruner=pruner)
        assert 0 < sum(trial.state == TrialState.PRUNED for trial in search.trials) < 20

    @pytest.mark.parametrize(
        "objectives",
        [
            pytest.param(LOSS, id="one"),
            pytest.param(LOSS_AND_F1, id="two", marks=pytest.mark.heavy),
        ],
    )
    def test_gp(self, objectives: Any) -> None:
        self._same(GP, lambda search: at_once(search, 7), objectives=objectives)

    def test_grid(self) -> None:
        space = {"a": Dimension(choices=["x", None]), "b": Dimension(low=1, high=4)}

        def whole(search: Search) -> None:
            search.study.ask({"a": None, "b": 2})
            while not search.study.is_exhausted:
                search.study.ask()

        self._same(GridSampler(seed=13), whole, space=space)

    @staticmethod
    def _same(sampler: SamplerSpec, run: Callable[[Search], None], **options: Any) -> Search:
        whole, broken = Search(sampler, **options), Search(sampler, crashes=True, **options)
        run(whole)
        run(broken)
        assert broken.trials == whole.trials
        return whole


class TestSuggestions:
    @pytest.mark.parametrize(
        "name", sorted(SAMPLERS.keys() - {"qmc"})
    )  # which has no seed unscrambled
    def test_differ_with_the_seed(self, name: str) -> None:
        one = Search(SAMPLERS[name])
        other = Search(SAMPLERS[name].model_copy(update={"seed": 77}))
        assert one.study.ask().values != other.study.ask().values

    @pytest.mark.parametrize("name", ["random", "qmc", "qmc-options"])
    def test_some_do_not_look_at_the_results(self, name: str) -> None:
        one, other = Search(SAMPLERS[name]), Search(SAMPLERS[name])
        for _ in range(10):
            one.complete()
            other.study.ask()
        assert one.values == other.values

    @pytest.mark.parametrize("name", ["tpe", "nsgaii"])
    def test_others_learn(self, name: str) -> None:
        search = Search(SAMPLERS[name])
        losses = [loss(search.complete().values) for _ in range(60)]
        assert median(losses[-20:]) < 0.8 * median(losses[:20])

    @pytest.mark.parametrize(("kind", "scramble"), [("sobol", False), ("halton", True)])
    @pytest.mark.filterwarnings("ignore:QMCSampler is experimental")
    def test_qmc_is_optunas_sequence(self, kind: Any, scramble: bool) -> None:
        space = {"a": Dimension(low=0.0, high=1.0), "b": Dimension(choices=["x", "y", "z"])}
        search = Search(QmcSampler(seed=3, qmc_type=kind, scramble=scramble), space)
        sampler = optuna.samplers.QMCSampler(
            seed=3, qmc_type=kind, scramble=scramble, warn_independent_sampling=False
        )
        study = optuna.create_study(sampler=sampler)
        # Optuna's first trial is random, as nothing tells it the fields.
        for number in range(9):
            trial = study.ask()
            trial.suggest_float("a", 0, 1)
            trial.suggest_categorical("b", ["x", "y", "z"])
            study.tell(number, 1.0)
        for number in range(8):
            search.study.ask()
            search.study.end(number, TrialState.COMPLETE, [1.0])
        assert search.values == [trial.params for trial in study.trials[1:]]

    def test_fields_with_a_condition_are_random_beside_qmc(self) -> None:
        study = Search(SAMPLERS["qmc"]).study
        found = [study.ask({"training.optim": "sgd"}).values["training.momentum"] for _ in "abc"]
        assert len(set(found)) == 3


class TestGrid:
    SPACE: ClassVar[dict[str, Dimension]] = {
        "b": Dimension(low=1, high=5, step=2),
        "a": Dimension(low=0.1, high=0.35, step=0.1),
        "c": Dimension(choices=[{"r": 8}, None]),
    }

    def test_each_combination_once_in_the_order_of_the_seed(self) -> None:
        orders = []
        for seed in (13, 14):
            search = Search(GridSampler(seed=seed), self.SPACE)
            search.study.ask({"a": 0.2, "b": 3, "c": None})
            for _ in range(18):
                search.study.ask()
            assert len({str(values) for values in search.values[1:]}) == 18
            with pytest.raises(GridExhaustedError):
                search.study.ask()
            orders.append(search.values)
        assert orders[0] != orders[1]


class TestPruning:
    @pytest.mark.parametrize(
        ("spec", "plain"),
        [
            (
                MedianPruner(n_startup_trials=8, n_warmup=2, n_min_trials=3),
                lambda: optuna.pruners.MedianPruner(8, n_warmup_steps=2, n_min_trials=3),
            ),
            (
                PatiencePruner(patience=1, min_delta=0.05),
                lambda: optuna.pruners.PatientPruner(None, 1, 0.05),
            ),
        ],
        ids=["median", "patience"],
    )
    @pytest.mark.filterwarnings("ignore:PatientPruner is experimental")
    def test_the_same_trials_end_as_with_optuna(
        self, spec: PrunerSpec, plain: Callable[[], optuna.pruners.BasePruner]
    ) -> None:
        search = Search(RandomSampler(), pruner=spec)
        pruned(search, 20)
        study = optuna.create_study(pruner=plain())
        for ours in search.trials:
            theirs = study.ask()
            for step, value in ours.reports.items():
                theirs.report(value, step)
                ends = ours.state == TrialState.PRUNED and step == max(ours.reports)
                assert theirs.should_prune() == ends
            study.tell(theirs, ours.scores, optuna.trial.TrialState[ours.state.name])

    def test_others_are_not_optunas(self) -> None:
        search = Search(RandomSampler(), pruner=AshaPruner())
        search.study.ask()
        assert not search.report(0, 1, 1e9)

    def test_the_first_report_at_a_step_counts(self) -> None:
        search = Search(RandomSampler(), pruner=PatiencePruner(patience=0))
        search.study.ask()
        assert not search.report(0, 1, 1.0)
        search.study.report(0, 1, 3.0)
        assert search.report(0, 2, 2.0)


class TestFixedValues:
    def test_the_sampler_chooses_the_others(self) -> None:
        search = Search(TpeSampler())
        assert search.study.ask({"training.batch_size": 16}).values["training.batch_size"] == 16
        assert "training.momentum" in search.study.ask({"training.optim": "sgd"}).values
        # Its condition is not met.
        fixed = {"training.optim": "adam", "training.momentum": 0.9}
        assert "training.momentum" not in search.study.ask(fixed).values

    def test_a_last_step_that_was_summed_up(self) -> None:
        """0.1 + 0.2 is the last value of this field, and not 0.3."""
        space = {"a": Dimension(low=0.1, high=0.35, step=0.1)}
        search = Search(RandomSampler(), space=space, crashes=True)
        assert search.study.ask({"a": 0.1 + 0.2}).values == {"a": 0.3}
        search.study.ask()

    def test_a_choice_that_is_none_is_not(self) -> None:
        with pytest.raises(ValueError, match=r"'adagrad' is not one of the choices of training"):
            Search(TpeSampler()).study.ask({"training.optim": "adagrad"})


class TestHistory:
    def test_optuna_is_shown_the_same_trials_after_a_crash(self) -> None:
        search = Search(TpeSampler(n_startup_trials=2), pruner=MedianPruner())
        for number, state in enumerate([*TrialState, TrialState.PRUNED]):
            search.study.ask()
            search.report(number, 2, math.nan if number == 3 else 2.0)
            search.report(number, 1, 1.0)
            if state != TrialState.RUNNING:
                search.study.end(number, state, [1.0] if state == TrialState.COMPLETE else None)
        anew = Study(SPACE, LOSS, search.sampler, search.pruner, search.trials)
        kept, again = ([vars(it) for it in self._shown(each)] for each in (search.study, anew))
        assert kept == again
        assert [it["_values"] for it in kept] == [None, [2.0], [1.0], None, None, None, [2.0]]

    def test_a_paused_trial_may_fail_later(self) -> None:
        study = Search(RandomSampler()).study
        study.end(study.ask().number, TrialState.PAUSED)
        study.end(0, TrialState.CANCELLED)
        assert [trial.state for trial in self._shown(study)] == [optuna.trial.TrialState.FAIL]

    @staticmethod
    def _shown(study: Study) -> list[optuna.trial.FrozenTrial]:
        trials = study._study.get_trials()
        for trial in trials:
            trial.datetime_start = trial.datetime_complete = None
        return trials

    def test_complete_trials_have_scores(self) -> None:
        search = Search(RandomSampler())
        search.complete()
        search.trials[0].scores = None
        with pytest.raises(ValueError, match="trial 0 is complete and has no scores"):
            Study(SPACE, LOSS, RandomSampler(), NoPruner(), search.trials).ask()
