"""The parts of a search and of its trials in words, for tables and lines."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from service.cli.terminal.client import Json
from service.contract.search.states import TrialState
from service.contract.states import JobState
from service.system import escaping, units

_LONGEST_VALUE: Final = 40
STATE_STYLES: Final = {
    TrialState.RUNNING: "cyan",
    TrialState.PAUSED: "yellow",
    TrialState.COMPLETE: "green",
    TrialState.PRUNED: "dim",
    TrialState.FAILED: "red",
    TrialState.CANCELLED: "yellow",
}


def short_names(paths: Iterable[str]) -> dict[str, str]:
    """Path → its last part, or as many of the last parts as tell it from the other paths."""
    every = list(dict.fromkeys(paths))
    return {path: _shortest(path, every) for path in every}


def _shortest(path: str, every: list[str]) -> str:
    parts = path.split(".")
    for count in range(1, len(parts)):
        name = ".".join(parts[-count:])
        if not any(other != path and f".{other}".endswith(f".{name}") for other in every):
            return name
    return path


def value(given: Any) -> str:
    """A value of a field, briefly: `3e-05`, `true`, `adamw`."""
    if isinstance(given, int | float) and not isinstance(given, bool):
        return units.number(given)
    text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    line = escaping.line(text)
    return line if len(line) <= _LONGEST_VALUE else f"{line[: _LONGEST_VALUE - 1]}…"


def values(trial: Json, names: Mapping[str, str]) -> str:
    """`learning_rate 3e-05  r 8`."""
    found = trial["values"].items()
    return "  ".join(f"{names.get(path, path)} {value(given)}" for path, given in found)


def scores(given: Iterable[Any], objectives: Iterable[Json]) -> str:
    """`f1 81.2  loss 0.41`."""
    pairs = zip(objectives, given, strict=False)
    return "  ".join(f"{metric(each)} {units.number(score, 4)}" for each, score in pairs)


def metric(objective: Json) -> str:
    return str(objective["metric"]).removeprefix("eval_")


def state(trial: Json) -> str:
    """That of its job where this says more: a running trial may still be queued."""
    if trial["state"] == TrialState.RUNNING and trial["job_state"]:
        return str(trial["job_state"])
    return str(trial["state"])


def progress(trial: Json) -> str:
    percent = (trial["progress"] or {}).get("percent")
    return "" if percent is None else f"{percent:.0f}%"


def last_report(trial: Json) -> str:
    """`0.812 at 300`: what it had reached at its latest rung or evaluation."""
    if not trial["reports"]:
        return ""
    report = trial["reports"][-1]
    return f"{units.number(report['value'], 4)} at {report['resource']:,}"


def why(trial: Json) -> str:
    """Why it was pruned or failed, or what it waits for."""
    if trial["failure"]:
        return f"{trial['failure']['code']}: {trial['failure']['message']}"
    if trial["reason"]:
        return str(trial["reason"])
    if trial["state"] == TrialState.PAUSED and trial["reports"]:
        return f"waits at {trial['reports'][-1]['resource']:,} until it is among the best"
    return ""


def counts(search: Json) -> str:
    """`12 of 20 trials: 3 running, 9 complete`."""
    total = sum(search["trials"].values())
    parts = [
        f"{search['trials'][each]:,} {each}" for each in TrialState if search["trials"].get(each)
    ]
    text = f"{total:,} of {search['max_trials']:,} trials"
    return f"{text}: {', '.join(parts)}" if parts else text


def waiting(search: Json) -> str:
    """Why it makes no trial at present."""
    if search["state"] == JobState.PAUSED:
        return "`finetune search resume` continues it"
    return str((search["waiting"] or {}).get("message", ""))
