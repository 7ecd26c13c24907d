"""How long a search may still take, from what its trials took so far."""

from collections.abc import Collection, Iterable
from datetime import datetime

from service.cli.terminal.client import Json
from service.contract.search.states import OVER
from service.contract.states import JobState
from service.system import units


def of_trial(trial: Json) -> float | None:
    """The seconds from its creation to its end; None before its end."""
    if trial["ended_at"] is None:
        return None
    took = units.moment(trial["ended_at"]) - units.moment(trial["created_at"])
    return took.total_seconds()


def estimate(
    search: Json, durations: Collection[float], running: Iterable[Json], now: datetime
) -> float | None:
    """Seconds, at most: some searches end earlier. None while nothing says how long a trial takes.

    `durations`: of trials that have ended; `running`: trials that run, and are partly done.
    """
    if search["state"] != JobState.RUNNING or not durations:
        return None
    mean = sum(durations) / len(durations)
    left: int = search["max_trials"] - sum(search["trials"].get(state, 0) for state in OVER)
    done = sum(
        min(mean, (now - units.moment(trial["created_at"])).total_seconds()) for trial in running
    )
    at_once: int = max(1, min(search["spec"]["max_parallel"], left))
    seconds = max(0.0, left * mean - done) / at_once
    until_timeout = _until_timeout(search, now)
    # The trials that run then go on to their end.
    return seconds if until_timeout is None else min(seconds, until_timeout + mean)


def _until_timeout(search: Json, now: datetime) -> float | None:
    timeout = search["spec"].get("timeout_seconds")
    if timeout is None or search["started_at"] is None:
        return None
    elapsed = (now - units.moment(search["started_at"])).total_seconds()
    return max(0.0, float(timeout) - elapsed)
