"""The list of jobs as a table: one that fits a terminal, or one for scripts with nothing cut."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from service.cli.terminal import output, wait_reasons
from service.cli.terminal.client import Json
from service.contract.states import JobState
from service.system import escaping, units

_GAP: Final = 2
_FEWEST_DIGITS: Final = 9
"""Characters of an id: enough to distinguish jobs created 0.3 s apart."""
_FEWEST_DIGITS_OF_SOME: Final = 11
"""If a filter hides other jobs: distinguishes ids created 1 ms apart."""
_ELASTIC: Final = {"name": 8, "task": 8, "state": 16, "metric": 8}
"""Columns that may be cut, and the width that they keep: 80 columns are always enough."""
_STYLES: Final = {
    JobState.SUCCEEDED: "green",
    JobState.FAILED: "red",
    JobState.CANCELLED: "yellow",
    JobState.RUNNING: "cyan",
}

_QUOTED: Final = {
    "question-answering": ("f1",),
    "causal-lm": ("perplexity",),
    "masked-lm": ("perplexity",),
    # Several labels: f1; a number to predict: pearson.
    "text-classification": ("accuracy", "f1", "pearson"),
    "token-classification": ("f1",),
    "summarization": ("rougeL",),
    "translation": ("bleu",),
    # Exact match only where answers are generated.
    "chat": ("exact_match", "perplexity"),
    "preference": ("rewards/accuracies",),
    "reward": ("accuracy",),
}
"""The metric that people quote of a task's model."""


def short_ids(ids: Sequence[str], others: Sequence[str] = (), *, is_filtered: bool) -> list[str]:
    """The shortest beginnings, all of one length and without `job-`, that tell these jobs apart.

    `others`: the jobs next to those of the page, which are not shown.
    """
    every = [one.removeprefix("job-") for one in (*ids, *others)]
    fewest = _FEWEST_DIGITS_OF_SOME if is_filtered else _FEWEST_DIGITS
    longest = max(map(len, every), default=0)
    for length in range(fewest, longest):
        if len({one[:length] for one in every}) == len(every):
            return [one[:length] for one in every[: len(ids)]]
    return every[: len(ids)]


def for_terminal(
    jobs: Sequence[Json], shown_ids: Sequence[str], width: int, now: datetime
) -> Table:
    """A line for each job, none wider than `width`."""
    rows = [_cells(job, shown, now) for job, shown in zip(jobs, shown_ids, strict=True)]
    columns = ("id", "name", "task", "state", "age", "took", "metric")
    natural = {
        column: max([cell_len(column), *(cell_len(row[column]) for row in rows)])
        for column in columns
    }
    widths = _fitted(natural, width - _GAP * (len(columns) - 1))
    table = Table.grid(padding=(0, _GAP, 0, 0), pad_edge=False)
    for column in columns:
        justify = "right" if column in ("age", "took") else "left"
        table.add_column(
            width=widths[column],
            no_wrap=True,
            overflow="ellipsis",
            justify=justify,  # type: ignore[arg-type]
        )
    table.add_row(*(Text(column, style="bold") for column in columns))
    for job, row in zip(jobs, rows, strict=True):
        table.add_row(
            *(
                Text(row[column], style=_STYLES.get(job["state"], "") if column == "state" else "")
                for column in columns
            )
        )
    return table


def _cells(job: Json, shown_id: str, now: datetime) -> dict[str, str]:
    created = units.moment(job["created_at"])
    ended = units.moment(job["ended_at"]) if job["ended_at"] else None
    return {
        "id": shown_id,
        "name": escaping.line(job["name"] or ""),
        "task": escaping.line(job["task"]),
        "state": wait_reasons.state(job, now),
        "age": units.brief((now - created).total_seconds()),
        "took": units.brief((ended - created).total_seconds()) if ended else "",
        "metric": _metric(job),
    }


def _fitted(natural: dict[str, int], room: int) -> dict[str, int]:
    """Widths of the columns: the elastic one with the most to spare loses first, until all fit."""
    widths = dict(natural)
    while sum(widths.values()) > room:
        wide = [name for name, least in _ELASTIC.items() if widths[name] > least]
        if not wide:
            break
        widths[max(wide, key=lambda name: widths[name] - _ELASTIC[name])] -= 1
    return widths


def _metric(job: Json) -> str:
    """The best value of the metric that the job has chosen; otherwise the task's own metric in the
    latest evaluation, or the loss."""
    best, metrics = job.get("best_metric"), job["last_metrics"]
    if best:
        return f"{best['name'].removeprefix('eval_')} {units.number(best['value'])}"
    for name in (*_QUOTED.get(job["task"], ()), "loss"):
        value = metrics.get(f"eval_{name}")
        if value is not None:
            return f"{name} {units.number(value)}"
    return ""


COLUMNS: Final = (
    "id",
    "name",
    "state",
    "stage",
    "percent",
    "created_at",
    "ended_at",
    "task",
    "waiting",
    "metric",
)


def for_scripts(jobs: Sequence[Json]) -> Iterator[str]:
    """Tab-separated lines with whole ids and names; the first line names the columns."""
    return output.tab_separated(COLUMNS, map(_row, jobs))


def _row(job: Json) -> Json:
    percent = (job["progress"] or {}).get("percent")
    return {
        **job,
        "percent": "" if percent is None else f"{percent:.4g}",
        "created_at": job["created_at"][:19],
        "ended_at": (job["ended_at"] or "")[:19],
        "waiting": (job.get("waiting") or {}).get("reason"),
        "metric": _metric(job),
    }
