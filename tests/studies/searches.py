"""A search in our `Study`, which may crash before each step."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

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
    sampler: SamplerSpec
    space: Mapping[str, Dimension] = field(default_factory=lambda: SPACE)
    objectives: Sequence[Objective] = field(default_factory=lambda: LOSS)
    pruner: PrunerSpec = field(default_factory=NoPruner)
    crashes: bool = False

    def __post_init__(self) -> None:
        self._study = self._made_from([])

    @property
    def study(self) -> Study:
        if self.crashes:
            # As from a database, which orders the fields of an object as it likes.
            text = json.dumps([asdict(trial) for trial in self._study.trials], sort_keys=True)
            self._study = self._made_from([_trial(row) for row in json.loads(text)])
        return self._study

    @property
    def trials(self) -> list[Trial]:
        return self._study.trials

    @property
    def values(self) -> list[dict[str, Any]]:
        return [trial.values for trial in self.trials]

    def complete(self, fixed: Mapping[str, Any] | None = None) -> Trial:
        """One more trial, from its beginning to its end."""
        trial = self.study.ask(fixed)
        self.study.end(trial.number, TrialState.COMPLETE, [loss(trial.values)])
        return self.trials[trial.number]

    def report(self, number: int, resource: int, value: float) -> bool:
        """Whether the trial should end."""
        self.study.report(number, resource, value)
        return self.study.should_prune(number)

    def _made_from(self, trials: list[Trial]) -> Study:
        return Study(self.space, self.objectives, self.sampler, self.pruner, trials)


def _trial(row: dict[str, Any]) -> Trial:
    reports = {int(resource): value for resource, value in row["reports"].items()}
    return Trial(**{**row, "reports": reports, "state": TrialState(row["state"])})
