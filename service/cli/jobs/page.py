"""`finetune get`: everything about one job, for a person."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from service.cli.jobs import live_display
from service.cli.jobs.result import short_id, show_outcome, show_title
from service.cli.terminal import output
from service.cli.terminal.client import Json
from service.contract.spec import splits
from service.contract.states import ENDED, JobState
from service.event_sentences import Narrator
from service.system import units

_SAMPLES: Final = 3
_SAMPLE_TEXT: Final = 70
_ENDS: Final = ("stage_finished", "attempt_failed", "lease_expired", "released", "cancelled")


def show(
    console: Console, job: Json, events: Sequence[Json], file_names: Mapping[str, str]
) -> None:
    """`events`: its whole history, from which the attempts are read. `file_names`: by file id, of
    the uploads that still exist."""
    now = datetime.now(UTC)
    show_title(console, job, job["name"])
    for title, value in _facts(job, file_names, now):
        console.print(f"[bold]{title:<8}[/] {output.inline(value)}")
    if job["state"] not in ENDED:
        console.print(output.inline(live_display.line(job, now=now)))
    attempts = list(_attempts(events))
    if attempts:
        console.print(_attempts_table(attempts))
    show_outcome(console, job)
    for number, sample in enumerate((job["result"] or {}).get("samples", ())[:_SAMPLES], 1):
        console.print(f"[bold]sample {number}[/]")
        for key, value in sample.items():
            console.print(f"  {output.inline(key)}: {output.inline(_shortened(value))}")
    if job["actions"]:
        example = f"`finetune {job['actions'][0]} {short_id(job['id'])}`"
        actions = output.inline(f"{', '.join(job['actions'])}: {example}")
        console.print(f"[bold]actions [/] {actions}")


def _facts(job: Json, file_names: Mapping[str, str], now: datetime) -> Iterator[tuple[str, str]]:
    spec = job["spec"]
    yield "task", job["task"]
    yield "model", _model(spec["model"])
    yield "data", _data(spec["dataset"], file_names)
    if job.get("cloned_from"):
        yield "clone of", job["cloned_from"]
    if job.get("search_id"):
        number = "" if job.get("trial") is None else f"trial {job['trial']} of "
        yield "search", f"{number}{job['search_id']}"
    created = units.moment(job["created_at"])
    ago = units.duration((now - created).total_seconds())
    yield "created", f"{units.local(job['created_at'])}, {ago} ago"
    started = [stage["started_at"] for stage in job["stages"] if stage["started_at"]]
    if started:
        yield "started", units.local(started[0])
    if job["ended_at"]:
        took = units.duration((units.moment(job["ended_at"]) - created).total_seconds())
        yield "ended", f"{units.local(job['ended_at'])}, {took} after it was created"
    spent = [
        f"{stage['stage']} {units.duration(stage['running_seconds'])}"
        for stage in job["stages"]
        if stage["running_seconds"]
    ]
    if spent:
        yield "stages", ", ".join(spent)
    if job["metadata"]:
        yield "labels", ", ".join(f"{key}:{value}" for key, value in job["metadata"].items())
    if job["worker"]:
        yield "worker", job["worker"]


def _model(model: Json) -> str:
    if model.get("job"):
        return f"of job {model['job']}"
    if model.get("config"):
        return f"a new {model['config'].get('model_type', 'model')}, from scratch"
    revision = f" at {model['revision']}" if model.get("revision") else ""
    return f"{model.get('name_or_path')}{revision}"


def _data(dataset: Json, file_names: Mapping[str, str]) -> str:
    if dataset["source"] == "hub":
        config = f" ({dataset['config']})" if dataset.get("config") else ""
        return f"{dataset['name']}{config} of the Hub"
    parts = [
        f"{split}: {_files(dataset[split], file_names)}"
        for split in splits.ALL
        if dataset.get(split)
    ]
    return "; ".join(parts)


def _files(value: Any, file_names: Mapping[str, str]) -> str:
    """Of a split: one file, several, or several named sets."""
    if isinstance(value, dict):
        sets = (f"{name} {_files(each, file_names)}" for name, each in value.items())
        return ", ".join(sets)
    if isinstance(value, list):
        return ", ".join(_files(each, file_names) for each in value)
    return f"{file_names[value]} ({value})" if value in file_names else str(value)


def files_of(dataset: Json) -> list[str]:
    """The ids of all uploads in a stored `dataset` section, each once."""
    found: list[str] = []
    for value in map(dataset.get, splits.ALL):
        for one in value.values() if isinstance(value, dict) else [value]:
            found += one if isinstance(one, list) else [one] if one else []
    return list(dict.fromkeys(found))


# ---- attempts ---------------------------------------------------------------------------------


def _attempts(events: Sequence[Json]) -> Iterator[dict[str, str]]:
    """What the history says about each attempt: its beginning and its end have one epoch."""
    narrator = Narrator()
    running: dict[str, str] | None = None
    began: Json = {}
    for event in events:
        sentence = narrator.say(event)
        if event["type"] == "stage_started":
            if running:
                yield running
            began = event
            running = {"started": units.local(event["at"])[11:], "took": "", "what": sentence}
        elif running and event["type"] in _ENDS and event["data"].get("stage"):
            seconds = (units.moment(event["at"]) - units.moment(began["at"])).total_seconds()
            running |= {"took": units.duration(seconds), "outcome": _outcome(event)}
            yield running
            running = None
    if running:
        yield running


def _outcome(event: Json) -> str:
    failure = event["data"].get("failure")
    if event["type"] in ("attempt_failed", "lease_expired"):
        return str(failure["code"]) if failure else "failed"
    if event["type"] == "released":
        if failure:
            return str(failure["code"])
        return "paused" if event["data"].get("to") == JobState.PAUSED else "given back"
    return "cancelled" if event["type"] == "cancelled" else "finished"


def _attempts_table(attempts: Sequence[dict[str, str]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("started", "took", "outcome"):
        table.add_column(column, no_wrap=True)
    table.add_column("attempt", overflow="fold")
    for attempt in attempts:
        outcome = attempt.get("outcome", "running")
        what = attempt["what"].removeprefix("attempt ").replace(" started on worker", " on")
        cells = (attempt["started"], attempt["took"], outcome, what)
        table.add_row(*map(output.inline, cells))
    return table


def _shortened(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= _SAMPLE_TEXT else f"{text[: _SAMPLE_TEXT - 1]}…"
