"""Optuna's figures of a search."""

import json
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, get_args

from optuna import visualization
from optuna.exceptions import ExperimentalWarning

from service.contract.search.objectives import Objective
from service.contract.search.space import Dimension
from service.contract.search.states import TrialState
from service.studies.history import Trial
from service.studies.optuna_study import OptunaStudy
from service.studies.parameters import Parameter, parameters_of

FigureName = Literal[
    "history", "importances", "slices", "parallel-coordinates", "rungs", "pareto-front"
]
FIGURE_NAMES: Final[tuple[FigureName, ...]] = get_args(FigureName)
MOST_LINES: Final = 500
"""Of figures with a line for each trial: 10,000 take 10 s and 5 MB, and cannot be
distinguished."""


class NoFigureError(Exception):
    """A sentence for the user: why there is none."""


class NotEnoughTrialsError(NoFigureError):
    """There may be one later."""


def figure(
    name: FigureName,
    space: Mapping[str, Dimension],
    objectives: Sequence[Objective],
    trials: Sequence[Trial],
    metric: str | None = None,
) -> dict[str, Any]:
    """A figure as plotly.js takes it.

    Of several objectives `pareto-front` shows all, and `parallel-coordinates` too unless `metric`
    names one; the others show that one, or the first.
    """
    shown = _Shown.from_search(space, objectives, trials)
    if metric is not None and name != "pareto-front":
        shown = shown.only(metric)
    drawn: dict[str, Any] = json.loads(_FIGURES[name](shown).to_json())
    return drawn


@dataclass(frozen=True)
class _Shown:
    """A search with short names for its fields, and only those scores that a figure can show."""

    parameters: Mapping[str, Parameter]
    objectives: Sequence[Objective]
    trials: Sequence[Trial]

    @classmethod
    def from_search(
        cls,
        space: Mapping[str, Dimension],
        objectives: Sequence[Objective],
        trials: Sequence[Trial],
    ) -> "_Shown":
        names = _short_names(list(space))
        return cls(
            parameters_of({names[path]: dimension for path, dimension in space.items()}),
            objectives,
            [_renamed(trial, names) for trial in trials],
        )

    @property
    def complete(self) -> list[Trial]:
        return [trial for trial in self.trials if trial.state == TrialState.COMPLETE]

    @property
    def label(self) -> str:
        return self.objectives[0].metric

    def study(self) -> OptunaStudy:
        study = OptunaStudy(self.parameters, self.objectives, self.trials)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            study.set_metric_names([objective.metric for objective in self.objectives])
        return study

    def only(self, metric: str) -> "_Shown":
        for index, objective in enumerate(self.objectives):
            if metric in (objective.metric, objective.key):
                return self.first(index)
        metrics = ", ".join(f"`{objective.metric}`" for objective in self.objectives)
        raise NoFigureError(f"`{metric}` is not an objective of this search; it has {metrics}.")

    def first(self, index: int = 0) -> "_Shown":
        """With this objective alone. Not by Optuna's `target`, which knows no direction."""
        trials = [
            replace(trial, scores=None if trial.scores is None else [trial.scores[index]])
            for trial in self.trials
        ]
        return replace(self, objectives=[self.objectives[index]], trials=trials)

    def with_few(self, kept: Sequence[Trial]) -> "_Shown":
        """Without the lines of all other trials."""
        numbers = {trial.number for trial in kept[:MOST_LINES]}
        trials = [trial if trial.number in numbers else _hidden(trial) for trial in self.trials]
        return replace(self, trials=trials)

    def best_first(self) -> list[Trial]:
        """The complete trials, by the first objective."""
        sign = -1 if self.objectives[0].goal == "maximize" else 1
        return sorted(self.complete, key=lambda trial: sign * (trial.scores or [math.inf])[0])


def _history(shown: _Shown) -> Any:
    shown = shown.first()
    _need_complete(shown, 1)
    return visualization.plot_optimization_history(shown.study(), target_name=shown.label)


def _importances(shown: _Shown) -> Any:
    shown = shown.first()
    _need_complete(shown, 2)
    # What these importances compare.
    scores = [trial.scores for trial in shown.best_first()]
    if scores[math.ceil(len(scores) / 10) - 1] == scores[-1]:
        raise NotEnoughTrialsError(
            f"The best tenth of the complete trials is not better in `{shown.label}` than the "
            "others: importances need trials that differ."
        )
    with warnings.catch_warnings():
        # Of a field that only one trial has.
        warnings.filterwarnings("ignore", "Some regimes for parameter")
        return visualization.plot_param_importances(shown.study(), params=list(_varied(shown)))


def _slices(shown: _Shown) -> Any:
    shown = shown.first()
    _need_complete(shown, 1)
    return visualization.plot_slice(shown.study(), target_name=shown.label)


def _parallel_coordinates(shown: _Shown) -> Any:
    _need_complete(shown, 1)
    few = shown.with_few(shown.best_first())
    return visualization.plot_parallel_coordinate(few.study(), target_name=shown.label)


def _rungs(shown: _Shown) -> Any:
    reported = [trial for trial in shown.trials if trial.reports]
    if not reported:
        raise NotEnoughTrialsError("No trial has reported a value yet: rungs need at least one.")
    # Those that came furthest.
    reported.sort(key=lambda trial: max(trial.reports), reverse=True)
    drawn = visualization.plot_intermediate_values(shown.with_few(reported).study())
    drawn.update_layout(yaxis_title=shown.label)
    return drawn


def _pareto_front(shown: _Shown) -> Any:
    count = len(shown.objectives)
    if count not in (2, 3):
        raise NoFigureError(f"A Pareto front shows 2 or 3 objectives, and this search has {count}.")
    _need_complete(shown, 1)
    return visualization.plot_pareto_front(shown.study())


_FIGURES: Final[Mapping[str, Callable[[_Shown], Any]]] = {
    "history": _history,
    "importances": _importances,
    "slices": _slices,
    "parallel-coordinates": _parallel_coordinates,
    "rungs": _rungs,
    "pareto-front": _pareto_front,
}


def _need_complete(shown: _Shown, count: int) -> None:
    complete = len(shown.complete)
    if complete < count:
        trials = "a complete trial" if count == 1 else f"{count} complete trials"
        raise NotEnoughTrialsError(f"This figure needs {trials}, and there are {complete} yet.")


def _varied(shown: _Shown) -> Iterator[str]:
    """The fields of complete trials, in the order of the space: of equal ones Optuna would show
    another first in each process."""
    for path in shown.parameters:
        if any(path in trial.values for trial in shown.complete):
            yield path


def _renamed(trial: Trial, names: Mapping[str, str]) -> Trial:
    values = {names[path]: value for path, value in trial.values.items()}
    if not all(math.isfinite(score) for score in trial.scores or ()):
        trial = _hidden(trial)
    return replace(trial, values=values)


def _hidden(trial: Trial) -> Trial:
    """As one that failed, which no figure shows."""
    return replace(trial, state=TrialState.FAILED, scores=None)


def _short_names(paths: Sequence[str]) -> dict[str, str]:
    """`training.learning_rate` is `learning_rate`, where no other field is called that: Optuna cuts
    a name after 20 letters."""
    last = [path.rpartition(".")[2] for path in paths]
    return {
        path: name if last.count(name) == 1 else path
        for path, name in zip(paths, last, strict=True)
    }
