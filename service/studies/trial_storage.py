"""Optuna's storage in memory, filled from a search's history."""

import copy
from collections.abc import Iterable

from optuna.storages import InMemoryStorage
from optuna.trial import FrozenTrial, TrialState


class TrialStorage(InMemoryStorage):
    """For one study, so that a trial's id is its number."""

    def fill(self, study_id: int, trials: Iterable[FrozenTrial]) -> None:
        """Puts these trials after those that are there, without the deep copy of each that
        `create_new_trial` makes (2 s for 10,000)."""
        stored = self._studies[study_id].trials
        for trial in trials:
            if trial.number != len(stored):
                raise ValueError(f"trial {trial.number} comes where {len(stored)} is expected")
            stored.append(trial)
            self._trial_id_to_study_id_and_number[trial._trial_id] = (study_id, trial.number)
            self._update_cache(trial._trial_id, study_id)
        self._max_trial_id = len(stored) - 1
        self._prev_waiting_trial_number[study_id] = len(stored)

    def reopen(self, trial_id: int) -> None:
        """Lets a pruned trial run again, which Optuna knows no way to do."""
        trial = copy.copy(self._get_trial(trial_id))
        if trial.state == TrialState.PRUNED:
            trial.state = TrialState.RUNNING
            trial.values = None
            trial.datetime_complete = None
            self._set_trial(trial_id, trial)
