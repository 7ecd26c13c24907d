"""One search twice: in our `Study`, and in plain Optuna."""

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import optuna

from service.contract.search.objectives import Objective
from service.contract.search.pruners import NoPruner, PrunerSpec
from service.contract.search.samplers import SamplerSpec
from service.contract.search.space import Dimension
from service.contract.search.states import TrialState
from service.studies.history import Trial
from service.studies.study import Study

LOSS = [Objective(metric="loss")]
LOSS_AND_F1 = [Objective(metric="loss"), Objective(metric="f1")]

SPACE = {
    # Named before what it depends on.
    "training.momentum": Dimension(low=0.0, high=0.99, when={"training.optim": "sgd"}),
    "training.learning_rate": Dimension(low=1e-5, high=0.1, log=True),
    "training.dropout": Dimension(low=0.0, high=0.5, step=0.1),
    "training.batch_size": Dimension(low=8, high=64, step=8),
    "training.optim": Dimension(choices=["sgd", "adam", "lion"]),
}


def suggest(trial: optuna.Trial) -> dict[str, Any]:
    """`SPACE`, as somebody writes it who uses Optuna alone."""
    values = {
        "training.learning_rate": trial.suggest_float(
            "training.learning_rate", 1e-5, 0.1, log=True
        ),
        "training.dropout": trial.suggest_float("training.dropout", 0.0, 0.5, step=0.1),
        "training.batch_size": trial.suggest_int("training.batch_size", 8, 64, step=8),
        "training.optim": trial.suggest_categorical("training.optim", ["sgd", "adam", "lion"]),
    }
    if values["training.optim"] == "sgd":
        values["training.momentum"] = trial.suggest_float("training.momentum", 0.0, 0.99)
    return values


def loss(values: Mapping[str, Any]) -> float:
    rate: float = (math.log10(values["training.learning_rate"]) + 3) ** 2
    size = abs(values["training.batch_size"] - 32) / 16
    optim = {"sgd": 0.5, "adam": 0.0, "lion": 0.2}[values["training.optim"]]
    return float(
        rate + size + optim + values["training.dropout"] - values.get("training.momentum", 0) / 3
    )


def f1(values: Mapping[str, Any]) -> float:
    return 1 - float(values["training.dropout"]) - float(values["training.learning_rate"])


def curve(values: Mapping[str, Any]) -> list[float]:
    """The losses at steps 1 to 6: from far away to `loss`, some by way of a hump."""
    hump = values["training.dropout"] * 4
    return [loss(values) + 5 / step + hump * (step - 3) ** 2 / 9 for step in range(1, 7)]


@dataclass
class Search:
    """Keeps what a database would, and may crash before each step."""

    sampler: SamplerSpec
    space: Mapping[str, Dimension] = field(default_factory=lambda: SPACE)
    objectives: Sequence[Objective] = field(default_factory=lambda: LOSS)
    pruner: PrunerSpec = field(default_factory=NoPruner)
    crashes: bool = False
    trials: list[Trial] = field(default_factory=list)
    state: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        self._study = self._made_anew()

    @property
    def study(self) -> Study:
        if self.crashes:
            self._study = self._made_anew()
        return self._study

    @property
    def values(self) -> list[dict[str, Any]]:
        return [trial.values for trial in self.trials]

    def ask(self, fixed: Mapping[str, Any] | None = None) -> Trial:
        trial = self.study.ask(fixed)
        self.trials.append(trial)
        self.state = self._study.state()
        return trial

    def report(self, number: int, resource: int, value: float) -> bool:
        """Whether the trial should end."""
        self.study.report(number, resource, value)
        self.trials[number].reports[resource] = value
        self.state = self._study.state()
        return self.study.should_prune(number)

    def end(self, number: int, state: TrialState, scores: list[float] | None = None) -> None:
        self.study.end(number, state, scores)
        self.trials[number].state = state
        self.trials[number].scores = scores
        self.state = self._study.state()

    def resume(self, number: int) -> None:
        self.study.resume(number)
        self.trials[number].state = TrialState.RUNNING
        self.state = self._study.state()

    def _made_anew(self) -> Study:
        """As from a database, which orders the fields of an object as it likes."""
        rows = json.loads(json.dumps([asdict(trial) for trial in self.trials], sort_keys=True))
        trials = [_trial(row) for row in rows]
        state = json.loads(json.dumps(self.state, sort_keys=True, allow_nan=False))
        return Study(self.space, self.objectives, self.sampler, self.pruner, trials, state)


def _trial(row: dict[str, Any]) -> Trial:
    reports = {int(resource): value for resource, value in row["reports"].items()}
    return Trial(**{**row, "reports": reports, "state": TrialState(row["state"])})


def plain_study(
    sampler: optuna.samplers.BaseSampler,
    pruner: optuna.pruners.BasePruner | None = None,
    directions: Sequence[Literal["minimize", "maximize"]] = ("minimize",),
) -> optuna.Study:
    return optuna.create_study(
        study_name="search",
        sampler=sampler,
        pruner=pruner or optuna.pruners.NopPruner(),
        directions=list(directions),
    )


def plain(name: str, **options: Any) -> Any:
    """A sampler or pruner of Optuna, without what it says of its future."""
    module = optuna.samplers if name.endswith("Sampler") else optuna.pruners
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(module, name)(**options)


def params(study: optuna.Study) -> list[dict[str, Any]]:
    return [trial.params for trial in study.trials]
