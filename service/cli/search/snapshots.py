"""What a watched search looks like at one moment, read with few requests: of a search with
thousands of trials only those that a terminal can show."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from finetune_client.http import calls

from service.cli.search import time_left
from service.cli.terminal.client import Client, Json
from service.contract.search.states import OVER, TrialState

ROWS: Final = 20
_PAUSED_ROWS: Final = 5


@dataclass(frozen=True)
class Snapshot:
    search: Json
    trials: Sequence[Json]
    """The most relevant first: running, paused, the best, then the newest of the others."""
    best: Sequence[Json]
    durations: Mapping[int, float]
    """Seconds, of the trials that have ended and were read."""

    @property
    def running(self) -> list[Json]:
        return [trial for trial in self.trials if trial["state"] == TrialState.RUNNING]


class Reader:
    """Reads a search again at each call of `read`. After an error the next call misses nothing."""

    def __init__(self, client: Client, search_id: str) -> None:
        self._client = client
        self._path = calls.search(search_id)
        self._durations: dict[int, float] = {}
        self._best: list[Json] = []
        self._best_of: list[Json] | None = None

    def read(self) -> Snapshot:
        search = self._client.get(self._path)
        counts = search["trials"]
        running = self._trials(ROWS, TrialState.RUNNING) if counts.get("running") else []
        paused = self._trials(_PAUSED_ROWS, TrialState.PAUSED) if counts.get("paused") else []
        # Trials are numbered from 0 without gaps.
        before = sum(counts.values()) - ROWS - 1
        newest = self._trials(ROWS, None, before if before >= 0 else None)[::-1]
        if search["best"] != self._best_of:
            self._best = self._client.get(f"{self._path}/best")["data"] if search["best"] else []
            self._best_of = search["best"]
        found = [*running, *paused, *self._best, *newest]
        for trial in found:
            seconds = time_left.of_trial(trial)
            if trial["state"] in OVER and seconds is not None:
                self._durations[trial["trial"]] = seconds
        trials = list({trial["trial"]: trial for trial in found}.values())
        return Snapshot(search, trials, self._best, self._durations)

    def _trials(self, limit: int, state: TrialState | None, after: int | None = None) -> list[Json]:
        params = {"limit": limit, "state": state, "after": after}
        given = {name: value for name, value in params.items() if value is not None}
        found: list[Json] = self._client.get(f"{self._path}/trials", given)["data"]
        return found
