"""Trials as a table that fits a terminal, or as lines for scripts with nothing cut."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from service.cli.jobs.result import short_id
from service.cli.search import words
from service.cli.terminal import output
from service.cli.terminal.client import Json
from service.contract.search.states import OVER
from service.system import escaping

_GAP: Final = 2
_BEFORE: Final = ("trial", "job", "state", "done")
"""Columns before those of the fields that vary; after them comes what the trial reached."""
_RESULT: Final = "result"
_WIDTH_OF_RESULT: Final = 16
"""What the other columns leave for scores and reasons in any case; it takes all that is left."""
_WIDTH_OF_REASON: Final = 40
"""For so much of a reason the names of the fields are cut."""
_WIDTH_OF_NAME: Final = 8
"""A field's name may be cut to this if its values are not wider."""
Row = dict[str, str]


def for_terminal(
    trials: Sequence[Json], objectives: Sequence[Json], width: int, best: Sequence[int] = ()
) -> Table:
    """A line for each trial, none wider than `width`; the trials `best` have a bold score."""
    names = words.short_names(path for trial in trials for path in trial["values"])
    rows = [_row(trial, names, objectives) for trial in trials]
    widths = _fitted(rows, [*names.values()], width)
    table = Table.grid(padding=(0, _GAP, 0, 0), pad_edge=False)
    for column, size in widths.items():
        is_right = column in ("trial", "done") or column in names.values()
        justify = "right" if is_right else "left"
        table.add_column(width=size, no_wrap=True, overflow="ellipsis", justify=justify)  # type: ignore[arg-type]
    table.add_row(*(Text(column, style="bold") for column in widths))
    for trial, row in zip(trials, rows, strict=True):
        styles = {"state": words.STATE_STYLES.get(trial["state"], "")}
        if trial["trial"] in best:
            styles |= {"trial": "bold green", _RESULT: "bold green"}
        table.add_row(
            *(Text(row.get(column, ""), style=styles.get(column, "")) for column in widths)
        )
    return table


def _row(trial: Json, names: Mapping[str, str], objectives: Sequence[Json]) -> Row:
    is_open = trial["state"] not in OVER
    found = {
        "trial": str(trial["trial"]),
        "job": short_id(trial["job_id"]) if trial["job_id"] else "",
        "state": words.state(trial),
        "done": words.progress(trial) if is_open else "",
        "last": "" if trial["scores"] else words.last_report(trial),
        _RESULT: words.scores(trial["scores"] or (), objectives) or escaping.line(words.why(trial)),
    }
    fields = {names[path]: words.value(value) for path, value in trial["values"].items()}
    return {**fields, **found}


def _fitted(rows: Sequence[Row], fields: Sequence[str], width: int) -> dict[str, int]:
    """Column → its width, of those that have something to show; of the fields as many as there is
    room for, with their whole names where that cuts no reason."""
    before = {name: _width(rows, name) for name in _BEFORE if any(row[name] for row in rows)}
    last = {"last": _width(rows, "last")} if any(row["last"] for row in rows) else {}
    room = width - _taken(before) - _taken(last)
    shown = {name: _width(rows, name) for name in fields}
    if _taken(shown) > room - min(_width(rows, _RESULT), _WIDTH_OF_REASON):
        shown = {name: _width(rows, name, _WIDTH_OF_NAME) for name in fields}
    while shown and _taken(shown) > room - _WIDTH_OF_RESULT:
        shown.popitem()
    return {**before, **shown, **last, _RESULT: max(_WIDTH_OF_RESULT, room - _taken(shown))}


def _taken(widths: Mapping[str, int]) -> int:
    return sum(widths.values()) + _GAP * len(widths)


def _width(rows: Sequence[Row], column: str, most_of_name: int = sys.maxsize) -> int:
    name = min(cell_len(column), most_of_name)
    return max([name, *(cell_len(row.get(column, "")) for row in rows)])


COLUMNS: Final = (
    "trial",
    "job_id",
    "state",
    "scores",
    "values",
    "reason",
    "created_at",
    "ended_at",
)


def for_scripts(trials: Sequence[Json]) -> Iterator[str]:
    """Tab-separated lines; the first names the columns. Scores and values are JSON."""
    rows = (
        {
            **trial,
            "scores": json.dumps(trial["scores"]) if trial["scores"] else "",
            "values": json.dumps(trial["values"], ensure_ascii=False),
            "reason": words.why(trial),
            "created_at": trial["created_at"][:19],
            "ended_at": (trial["ended_at"] or "")[:19],
        }
        for trial in trials
    )
    return output.tab_separated(COLUMNS, rows)
