import math
from typing import Any

import pytest

from service.contract.search.objectives import Objective
from service.contract.search.space import Dimension
from service.contract.search.states import TrialState
from service.studies import figures
from service.studies.figures import (
    FIGURE_NAMES,
    FigureName,
    NoFigureError,
    NotEnoughTrialsError,
    figure,
)
from service.studies.history import Trial
from tests.studies.searches import LOSS, LOSS_AND_F1

SPACE = {
    "training.learning_rate": Dimension(low=0.0, high=1.0),
    "training.weight_decay": Dimension(low=0.0, high=1.0),
    "training.seed": Dimension(low=0, high=9),
    "peft.r": Dimension(low=1, high=8, when={"task.name": "b"}),
    "task.name": Dimension(choices=["a", "b", "</script><script>alert(1)</script>"]),
}


def values(number: int) -> dict[str, Any]:
    """Spread evenly, and each field in another order."""
    chosen = {
        "training.learning_rate": number * 0.618 % 1,
        "training.weight_decay": number * 0.414 % 1,
        "training.seed": number % 10,
        "task.name": "b" if number % 7 == 3 else "a",
    }
    return chosen | ({"peft.r": 1 + number % 8} if number % 7 == 3 else {})


def score(chosen: dict[str, Any]) -> float:
    return float(
        (chosen["training.learning_rate"] - 0.3) ** 2 * 10 + chosen["training.weight_decay"] * 0.5
    )


def complete(number: int, *more: float) -> Trial:
    chosen = values(number)
    return Trial(number, chosen, TrialState.COMPLETE, [score(chosen), *more])


TRIALS = [complete(number) for number in range(80)]


def drawn(
    name: FigureName,
    trials: list[Trial],
    objectives: list[Objective] = LOSS,
    metric: str | None = None,
) -> dict[str, Any]:
    return figure(name, SPACE, objectives, trials, metric)


class TestHistory:
    def test_a_point_for_each_complete_trial(self) -> None:
        failed = Trial(80, values(80), TrialState.FAILED)
        points, best, _ = drawn("history", [*TRIALS, failed])["data"]
        assert points["name"] == "loss"
        assert points["x"] == list(range(80))
        assert points["y"] == [trial.scores[0] for trial in TRIALS if trial.scores]
        assert best["y"][-1] == min(points["y"])
        assert best["y"] == sorted(best["y"], reverse=True)

    def test_infinite_scores_are_left_out(self) -> None:
        endless = Trial(1, values(1), TrialState.COMPLETE, [math.inf])
        assert drawn("history", [complete(0), endless, complete(2)])["data"][0]["x"] == [0, 2]

    def test_before_the_first_complete_trial_there_is_no_best(self) -> None:
        pruned = Trial(0, values(0), TrialState.PRUNED)
        assert drawn("history", [pruned, complete(1)])["data"][1]["y"][0] is None

    def test_one_of_several_objectives(self) -> None:
        trials = [complete(0, 0.5), complete(1, 0.7), complete(2, 0.6)]
        points, best, _ = drawn("history", trials, LOSS_AND_F1, "f1")["data"]
        assert (points["name"], points["y"]) == ("f1", [0.5, 0.7, 0.6])
        assert best["y"] == [0.5, 0.7, 0.7]
        assert drawn("history", trials, LOSS_AND_F1, "eval_f1")["data"][0]["name"] == "f1"
        assert drawn("history", trials, LOSS_AND_F1)["data"][0]["name"] == "loss"

    def test_an_objective_that_there_is_not(self) -> None:
        with pytest.raises(NoFigureError, match=r"`bleu` is not an objective.*`loss`, `f1`"):
            drawn("history", [], LOSS_AND_F1, "bleu")


class TestImportances:
    def test_they_are_in_the_order_of_a_known_function(self) -> None:
        (bars,) = drawn("importances", TRIALS)["data"]
        # The most important is drawn last, at the top.
        assert bars["y"][-2:] == ["weight_decay", "learning_rate"]
        assert bars["name"] == "loss"
        assert sum(bars["x"]) == pytest.approx(1.0)
        assert bars["x"][-1] > 0.5

    def test_equal_ones_are_in_the_order_of_the_space(self) -> None:
        first, second = (drawn("importances", TRIALS[:12])["data"][0] for _ in range(2))
        assert first == second
        assert set(first["y"]) == {"learning_rate", "weight_decay", "seed", "r", "name"}

    @pytest.mark.parametrize("count", [0, 1])
    def test_one_trial_is_not_enough(self, count: int) -> None:
        with pytest.raises(
            NotEnoughTrialsError, match=f"needs 2 complete trials, and there are {count} yet"
        ):
            drawn("importances", TRIALS[:count])

    @pytest.mark.parametrize("scores", [[1.0] * 4, [0.5] + [1.0] * 10])
    def test_the_best_must_be_better_than_others(self, scores: list[float]) -> None:
        trials = [Trial(n, values(n), TrialState.COMPLETE, [it]) for n, it in enumerate(scores)]
        with pytest.raises(NotEnoughTrialsError, match="not better in `loss` than the others"):
            drawn("importances", trials)
        assert drawn("importances", [*trials, complete(len(trials)), complete(len(trials) + 1)])

    def test_a_maximized_metric(self) -> None:
        trials = [complete(n, -score(values(n))) for n in range(80)]
        (bars,) = drawn("importances", trials, LOSS_AND_F1, "f1")["data"]
        assert bars["x"] == drawn("importances", TRIALS)["data"][0]["x"]


class TestSlices:
    def test_a_plot_for_each_field(self) -> None:
        plot = drawn("slices", TRIALS)
        titles = [plot["layout"][f"xaxis{n or ''}"]["title"]["text"] for n in (0, 2, 3, 4, 5)]
        assert titles == ["learning_rate", "name", "r", "seed", "weight_decay"]
        assert [len(trace["x"]) for trace in plot["data"]] == [80, 80, 11, 80, 80]


class TestParallelCoordinates:
    def test_a_line_for_each_trial(self) -> None:
        plot = drawn("parallel-coordinates", TRIALS)
        assert len(plot["data"]) == 80 + 1
        assert plot["layout"]["xaxis"]["ticktext"][0] == "loss"
        assert "learning_rate" in plot["layout"]["xaxis"]["ticktext"]

    def test_several_objectives_at_once(self) -> None:
        plot = drawn("parallel-coordinates", [complete(n, n / 9) for n in range(9)], LOSS_AND_F1)
        assert plot["layout"]["xaxis"]["ticktext"][:2] == ["loss", "f1"]

    def test_only_the_best_of_many(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(figures, "MOST_LINES", 5)
        lines = drawn("parallel-coordinates", TRIALS)["data"][:-1]
        best = sorted(score(trial.values) for trial in TRIALS)[:5]
        assert sorted(line["customdata"][0][1] for line in lines) == [f"{it:.3g}" for it in best]

    def test_the_best_of_a_maximized_metric(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(figures, "MOST_LINES", 2)
        trials = [complete(number, number / 10) for number in range(5)]
        lines = drawn("parallel-coordinates", trials, LOSS_AND_F1, "f1")["data"][:-1]
        assert sorted(line["customdata"][0][1] for line in lines) == ["0.3", "0.4"]


class TestRungs:
    TRIALS = (
        Trial(0, values(0), TrialState.COMPLETE, [0.1], {100: 0.9, 300: 0.5, 900: 0.1}),
        Trial(1, values(1), TrialState.PAUSED, None, {100: 0.95}),
        Trial(2, values(2), TrialState.RUNNING, None, {300: 0.6, 100: 0.8}),
        Trial(3, values(3)),
    )

    def test_a_line_for_each_trial_that_reported(self) -> None:
        lines = drawn("rungs", [*self.TRIALS])["data"]
        assert [(line["name"], line["x"], line["y"]) for line in lines] == [
            ("Trial0", [100, 300, 900], [0.9, 0.5, 0.1]),
            ("Trial1", [100], [0.95]),
            ("Trial2", [100, 300], [0.8, 0.6]),
        ]

    def test_only_those_of_many_that_came_furthest(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(figures, "MOST_LINES", 2)
        lines = drawn("rungs", [*self.TRIALS])["data"]
        assert [line["name"] for line in lines] == ["Trial0", "Trial2"]

    def test_without_reports(self) -> None:
        with pytest.raises(NotEnoughTrialsError, match="No trial has reported a value yet"):
            drawn("rungs", TRIALS)


class TestParetoFront:
    def test_the_best_and_the_others(self) -> None:
        trials = [Trial(n, values(n), TrialState.COMPLETE, [n, n % 3]) for n in range(6)]
        others, best = drawn("pareto-front", trials, LOSS_AND_F1)["data"]
        assert list(zip(best["x"], best["y"], strict=True)) == [(0, 0), (1, 1), (2, 2)]
        assert len(others["x"]) == 3

    @pytest.mark.parametrize("count", [1, 4])
    def test_it_shows_two_or_three(self, count: int) -> None:
        objectives = [Objective(metric=f"m{index}") for index in range(count)]
        with pytest.raises(NoFigureError, match=f"2 or 3 objectives, and this search has {count}"):
            drawn("pareto-front", [], objectives)


class TestAll:
    def test_what_a_figure_needs(self) -> None:
        with pytest.raises(NotEnoughTrialsError) as history:
            drawn("history", [])
        assert str(history.value) == "This figure needs a complete trial, and there are 0 yet."

    @pytest.mark.parametrize("name", FIGURE_NAMES)
    def test_a_search_that_has_just_begun(self, name: FigureName) -> None:
        with pytest.raises(NotEnoughTrialsError, match=r"need.*\.$|need.*yet"):
            drawn(name, [Trial(0, values(0))], LOSS_AND_F1)

    def test_long_names_where_short_ones_are_not_enough(self) -> None:
        space = {path: Dimension(low=0, high=1) for path in ("a.x", "b.x", "b.y")}
        trials = [Trial(0, dict.fromkeys(space, 1), TrialState.COMPLETE, [1.0])]
        ticks = figure("parallel-coordinates", space, LOSS, trials)["layout"]["xaxis"]["ticktext"]
        assert ticks == ["loss", "a.x", "b.x", "y"]
