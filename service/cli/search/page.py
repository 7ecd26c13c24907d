"""Everything about one search, for a person; and how it ended."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console

from service.cli.jobs.result import short_id, show_title
from service.cli.search import words
from service.cli.terminal import output
from service.cli.terminal.client import Json
from service.contract.states import JobState
from service.system import units


def show(console: Console, search: Json, best: Sequence[Json]) -> None:
    """`best`: the trials that its page names, or some of them."""
    show_title(console, search, search["name"])
    now = datetime.now(UTC)
    for title, value in (*_facts(search, now), *_outcome(search)):
        console.print(f"[bold]{title:<10}[/] {output.inline(value)}")
    show_best(console, search["objectives"], best)
    if search["actions"]:
        example = f"`finetune search {search['actions'][0]} {short_id(search['id'])}`"
        actions = output.inline(f"{', '.join(search['actions'])}: {example}")
        console.print(f"[bold]{'actions':<10}[/] {actions}")


def show_result(console: Console, search: Json, best: Sequence[Json]) -> None:
    """How it ended."""
    show_title(console, search, search["name"])
    console.print(f"[bold]{'trials':<10}[/] {output.inline(words.counts(search))}")
    for title, value in _outcome(search):
        console.print(f"[bold]{title:<10}[/] {output.inline(value)}")
    show_best(console, search["objectives"], best)


def show_best(console: Console, objectives: Sequence[Json], best: Sequence[Json]) -> None:
    """Each with its values one by one, and what can be done with its model."""
    names = words.short_names(path for trial in best for path in trial["values"])
    for trial in best:
        scores = output.inline(words.scores(trial["scores"] or (), objectives))
        console.print(f"[bold]{'best':<10}[/] trial {trial['trial']}  [green]{scores}[/]")
        for path, value in trial["values"].items():
            console.print(
                f"{'':<10} {output.inline(names[path])} {output.inline(words.value(value))}"
            )
        if trial["job_id"]:
            console.print(f"{'':<10} job {output.inline(trial['job_id'])}")
    if len(best) == 1 and best[0]["job_id"] and best[0]["job_state"] == JobState.SUCCEEDED:
        short = short_id(best[0]["job_id"])
        console.print(f"[bold]{'try it':<10}[/] finetune try {short}")
        console.print(f"[bold]{'get it':<10}[/] finetune download {short}")


def _facts(search: Json, now: datetime) -> Iterator[tuple[str, str]]:
    spec = search["spec"]
    yield "task", search["task"]
    for objective in search["objectives"]:
        yield "objective", f"{objective['direction']} {words.metric(objective)}"
    yield "sampler", _section(spec["sampler"])
    if spec["pruner"]["name"] != "none":
        yield "pruner", _section(spec["pruner"])
    for number, (path, dimension) in enumerate((spec["space"] or {}).items()):
        yield "" if number else "space", f"{path}: {dimension_words(dimension)}"
    yield "trials", f"{words.counts(search)}; up to {spec['max_parallel']:,} at once"
    created = units.moment(search["created_at"])
    ago = units.duration((now - created).total_seconds())
    yield "created", f"{units.local(search['created_at'])}, {ago} ago"
    if search["started_at"]:
        yield "started", units.local(search["started_at"])
    if search["ended_at"]:
        took = units.duration((units.moment(search["ended_at"]) - created).total_seconds())
        yield "ended", f"{units.local(search['ended_at'])}, {took} after it was created"
    if text := words.waiting(search):
        yield "waiting", text


def _outcome(search: Json) -> Iterator[tuple[str, str]]:
    if failure := search["failure"]:
        yield "failure", f"{failure['code']}: {failure['message']}"
        yield "what to do", failure["action"]
    if outcome := search["outcome"]:
        yield outcome["action"], f"job {outcome['job_id']}"
    if search["mlflow_url"]:
        yield "MLflow", search["mlflow_url"]


def _section(section: Mapping[str, Any]) -> str:
    """`tpe, seed 0, n_startup_trials 10`."""
    others = (
        f"{name} {words.value(value)}"
        for name, value in section.items()
        if name != "name" and value is not None
    )
    return ", ".join([str(section["name"]), *others])


def dimension_words(dimension: Mapping[str, Any]) -> str:
    """`1e-06 to 0.001, log`, or the choices."""
    if dimension.get("choices") is not None:
        text = ", ".join(map(words.value, dimension["choices"]))
    else:
        text = f"{words.value(dimension['low'])} to {words.value(dimension['high'])}"
        text += f", step {words.value(dimension['step'])}" if dimension.get("step") else ""
        text += ", log" if dimension.get("log") else ""
    if dimension.get("when"):
        conditions = (f"{path} is {words.value(of)}" for path, of in dimension["when"].items())
        text += f", where {' and '.join(conditions)}"
    return text
