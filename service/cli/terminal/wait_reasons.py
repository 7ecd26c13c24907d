"""What a job is doing, or why it waits, in a few words; waiting for previews and predictions."""

import time
from datetime import datetime
from typing import Final

from finetune_client.http.flows import UNFINISHED

from service.cli.terminal import output
from service.cli.terminal.client import Client, Json
from service.contract.states import JobState
from service.system import units

_PAUSE_SECONDS: Final = 1.0


def ended(client: Client, found: Json, path: str) -> Json:
    """A preview or a prediction once it has ended, for which the service sets it a time. Prints
    once why it waits. `path` is where it can be read."""
    printed = None
    while found["state"] in UNFINISHED:
        if found["waiting"] not in (None, printed):
            printed = found["waiting"]
            output.note(printed)
        time.sleep(_PAUSE_SECONDS)
        found = client.get(f"{path}/{found['id']}")
    return found


def activity(job: Json, now: datetime | None = None) -> str:
    """For a line that shows one job; `now` counts down to a retry."""
    stage = str(job["stage"])
    if job["state"] == JobState.PAUSED:
        return f"{stage} · paused: `finetune resume` continues it"
    if job["state"] == JobState.QUEUED:
        return f"{stage} · waiting{reason(job, now)}"
    return " · ".join([stage, *([job["phase"].replace("_", " ")] if job["phase"] else [])])


def reason(job: Json, now: datetime | None = None) -> str:
    """`: retry 2 of 3 in 17 s: could not reach the Hub`; empty if nothing is known."""
    waiting = job.get("waiting") or {}
    text, until = str(waiting.get("message") or ""), waiting.get("until")
    if not text:
        position = job.get("queue_position")
        return f", number {position} in the queue" if position else ""
    head, colon, rest = text.partition(": ")
    return f": {head}{_start(until, now)}{colon}{rest}"


def _start(until: str | None, now: datetime | None) -> str:
    """When a retry starts: with `now` a countdown, otherwise a time of day that does not change."""
    if until is None:
        return ""
    if now is None:
        return f" at {units.moment(until).astimezone():%H:%M:%S}"
    seconds = units.seconds_until(until, now)
    return f" in {units.duration(seconds)}" if seconds >= 0.5 else " now"


_LACKS = {"insufficient_resources": "machine full"}
_BRIEF = {"no_worker": "no worker", "busy_workers": "workers busy"}


def state(job: Json, now: datetime) -> str:
    """For a column: the state with its progress, the reason of a wait, or the code of a failure."""
    word, progress = str(job["state"]), job.get("progress") or {}
    percent = progress.get("percent")
    if word == JobState.QUEUED:
        return f"{word}{_brief_reason(job, now)}"
    if word == JobState.FAILED and job.get("failure"):
        return f"{word}: {job['failure']['code']}"
    if word in (JobState.RUNNING, JobState.PAUSED) and percent is not None:
        return f"{word} {job['stage']} {percent:.0f}%"
    return f"{word} {job['stage']}" if word == JobState.RUNNING else word


def _brief_reason(job: Json, now: datetime) -> str:
    waiting = job.get("waiting") or {}
    until = waiting.get("until")
    if waiting.get("reason") in _LACKS:
        return f": {_LACKS[waiting['reason']]}"
    if until:
        return f": retry in {units.brief(units.seconds_until(until, now))}"
    found = _BRIEF.get(waiting.get("reason", ""))
    return f": {found}" if found else ""
