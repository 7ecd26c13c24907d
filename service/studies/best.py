"""The best trials: of one objective the best one, of several those that no other one beats."""

from collections.abc import Sequence

from service.contract.search.objectives import Objective
from service.studies.history import Trial


class Best:
    """Of the complete trials that were added so far."""

    def __init__(self, objectives: Sequence[Objective]) -> None:
        self._objectives = objectives
        self._front: list[Trial] = []

    @property
    def numbers(self) -> list[int]:
        """By the first objective, the best first; of equal ones the earlier."""
        return [trial.number for trial in self._sorted()]

    @property
    def scores(self) -> list[list[float]]:
        return [trial.scores or [] for trial in self._sorted()]

    def _sorted(self) -> list[Trial]:
        return sorted(self._front, key=lambda trial: (self._losses(trial)[0], trial.number))

    def add(self, trial: Trial) -> bool:
        """Whether the complete trial is one of the best now."""
        if any(self._beats(other, trial) for other in self._front):
            return False
        self._front = [other for other in self._front if not self._beats(trial, other)]
        self._front.append(trial)
        return True

    def _beats(self, one: Trial, other: Trial) -> bool:
        """Whether `one` is nowhere worse and somewhere better; of equals the one that came first,
        if there is one objective only."""
        mine, theirs = self._losses(one), self._losses(other)
        if mine == theirs:
            return len(mine) == 1
        return all(m <= t for m, t in zip(mine, theirs, strict=True))

    def _losses(self, trial: Trial) -> list[float]:
        return [
            -score if objective.goal == "maximize" else score
            for objective, score in zip(self._objectives, trial.scores or [], strict=True)
        ]
