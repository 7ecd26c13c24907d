"""What `finetune search watch` reads, of a service with many trials."""

from collections.abc import Mapping
from typing import Any, cast

from service.cli.search.snapshots import ROWS, Reader
from service.cli.terminal.client import Client
from tests.cli.search.search_pages import make_search, make_trial


class Service:
    """The routes of one search, in memory."""

    def __init__(self, *trials: dict[str, Any]) -> None:
        self.trials = list(trials)
        self.best: list[int] = []
        self.rows_sent: list[int] = []
        self.paths: list[str] = []

    def get(self, path: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        self.paths.append(path.rpartition("/")[2])
        if path.endswith("/trials"):
            return self._trials(**(params or {}))
        if path.endswith("/best"):
            return {"data": [trial for trial in self.trials if trial["trial"] in self.best]}
        states = [trial["state"] for trial in self.trials]
        counts = {state: states.count(state) for state in ("running", "paused", "complete")}
        best = [{"trial": number, "scores": [1.0]} for number in self.best]
        return make_search(trials=counts, best=best)

    def _trials(self, limit: int, state: str | None = None, after: int = -1) -> dict[str, Any]:
        found = [
            trial
            for trial in self.trials
            if trial["trial"] > after and state in (None, trial["state"])
        ]
        self.rows_sent.append(len(found[:limit]))
        return {"data": found[:limit], "has_more": len(found) > limit}


def reader(service: Service) -> Reader:
    return Reader(cast("Client", service), "search-1")


def running(number: int) -> dict[str, Any]:
    return make_trial(number, state="running", scores=None, ended_at=None)


def test_the_running_ones_first_then_the_best_then_the_newest() -> None:
    trials = [make_trial(number, scores=[float(number)]) for number in range(60)]
    service = Service(*trials)
    service.trials[3] = running(3)
    service.trials[50] = make_trial(50, state="paused", scores=None, ended_at=None)
    service.best = [7]
    found = reader(service).read()
    numbers = [trial["trial"] for trial in found.trials]
    assert numbers == [3, 50, 7, *range(59, 50, -1), *range(49, 39, -1)]
    assert [trial["trial"] for trial in found.best] == [7]
    assert found.durations.keys() == {7, *range(40, 60)} - {50}


def test_the_best_is_read_again_only_when_it_changes() -> None:
    service = Service(make_trial(0), make_trial(1))
    service.best = [0]
    watched = reader(service)
    for _ in range(3):
        watched.read()
    assert service.paths.count("best") == 1
    service.best = [1]
    assert [trial["trial"] for trial in watched.read().best] == [1]


def test_of_ten_thousand_trials_a_read_asks_for_few() -> None:
    trials = [make_trial(number, scores=[float(number)]) for number in range(10_000)]
    service = Service(*trials, running(10_000))
    watched = reader(service)
    watched.read()
    assert sum(service.rows_sent) <= 2 * ROWS
