"""What a watched search looks like at one moment, read with few requests: of a search with
thousands of trials only those that a terminal can show."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from finetune_client import calls

from service.cli.client import Client, Json
from service.cli.search import time_left
from service.contract.search.states import OVER, TrialState

ROWS: Final = 20
_PAUSED_ROWS: Final = 5
_PAGES_AT_ONCE: Final = 3
"""Of the scores of earlier trials: those of 10,000 trials are complete after 34 reads."""


@dataclass(frozen=True)
class Snapshot:
    search: Json
    trials: Sequence[Json]
    """The most relevant first: running, paused, the best, then the newest of the others."""
    best: Sequence[Json]
    scores: Mapping[int, float]
    """The first objective's, of the complete trials, by number."""
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
        self._history = _History(client, calls.search(search_id, "trials"))
        self._best: list[Json] = []
        self._best_of: list[Json] | None = None

    def read(self) -> Snapshot:
        search = self._client.get(self._path)
        counts = search["trials"]
        running = self._trials(ROWS, TrialState.RUNNING) if counts.get("running") else []
        paused = self._trials(_PAUSED_ROWS, TrialState.PAUSED) if counts.get("paused") else []
        newest = self._newest(sum(counts.values()))
        self._read_best(search)
        found = [*running, *paused, *self._best, *newest]
        self._history.add(found)
        self._history.read(counts.get("complete", 0), [*running, *paused])
        trials = list({trial["trial"]: trial for trial in found}.values())
        return Snapshot(search, trials, self._best, self._history.scores, self._history.durations)

    def _trials(self, limit: int, state: TrialState | None, after: int | None = None) -> list[Json]:
        params = {"limit": limit, "state": state, "after": after}
        given = {name: value for name, value in params.items() if value is not None}
        found: list[Json] = self._client.get(f"{self._path}/trials", given)["data"]
        return found

    def _newest(self, total: int) -> list[Json]:
        """The latest first. Trials are numbered from 0 without gaps."""
        before = total - ROWS - 1
        return self._trials(ROWS, None, before if before >= 0 else None)[::-1]

    def _read_best(self, search: Json) -> None:
        """Only when the search names others than before."""
        if search["best"] == self._best_of:
            return
        self._best = self._client.get(f"{self._path}/best")["data"] if search["best"] else []
        self._best_of = search["best"]


class _History:
    """The scores of all complete trials: pages of the list, a few at each read."""

    def __init__(self, client: Client, path: str) -> None:
        self._client = client
        self._path = path
        self._known: set[int] = set()
        self._after: int | None = None
        self._is_at_end = False
        self._first_open: int | None = None
        self.scores: dict[int, float] = {}
        self.durations: dict[int, float] = {}

    def add(self, trials: Iterable[Json]) -> None:
        for trial in trials:
            number = trial["trial"]
            if trial["state"] in OVER and (seconds := time_left.of_trial(trial)) is not None:
                self.durations[number] = seconds
            if trial["state"] == TrialState.COMPLETE:
                self._known.add(number)
                score = (trial["scores"] or [None])[0]
                if isinstance(score, int | float):  # not `nan`
                    self.scores[number] = score

    def read(self, complete: int, unfinished: Sequence[Json]) -> None:
        """`complete`: how many there are; `unfinished`: the trials of the lowest numbers that
        have not ended. All that completes from now on has their numbers, or higher ones."""
        if self._is_at_end and len(self._known) < complete:
            self._after = None if self._first_open in (None, 0) else self._first_open - 1
            self._is_at_end = False
        if not self._is_at_end:
            self._read_pages()
        if self._is_at_end:
            numbers = [trial["trial"] for trial in unfinished]
            self._first_open = min(numbers, default=max(self._known, default=0))

    def _read_pages(self) -> None:
        for _ in range(_PAGES_AT_ONCE):
            params: Json = {"limit": calls.PAGE, "state": TrialState.COMPLETE}
            if self._after is not None:
                params["after"] = self._after
            page = self._client.get(self._path, params)
            self.add(page["data"])
            if not page["has_more"]:
                self._is_at_end = True
                return
            self._after = page["data"][-1]["trial"]
