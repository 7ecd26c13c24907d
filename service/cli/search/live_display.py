"""How a search that is watched looks: a live table at a terminal, lines or JSON elsewhere."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.text import Text

from service.cli.jobs.live_display import Display, Drawn
from service.cli.jobs.result import STATE_STYLES, short_id
from service.cli.search import time_left, trial_table, words
from service.cli.search.snapshots import ROWS, Snapshot
from service.cli.terminal import output
from service.cli.terminal.client import Json
from service.contract.search.states import OVER
from service.system import units

_SPARE_ROWS: Final = 2
"""For the names of the columns and the cursor."""
_MOST_BEST: Final = 3
"""With several objectives there may be hundreds."""


def status(snapshot: Snapshot, now: datetime) -> str:
    """State, time left, and why it waits."""
    search = snapshot.search
    left = time_left.estimate(search, snapshot.durations.values(), snapshot.running, now)
    parts = [
        search["state"],
        "" if left is None else f"about {units.duration(left)} left",
        words.waiting(search),
    ]
    return "  ".join(part for part in parts if part)


def best_lines(snapshot: Snapshot) -> Iterator[str]:
    names = words.short_names(path for trial in snapshot.best for path in trial["values"])
    for trial in snapshot.best[:_MOST_BEST]:
        parts = [
            f"best: trial {trial['trial']}",
            words.scores(trial["scores"] or (), snapshot.search["objectives"]),
            f"job {short_id(trial['job_id'])}" if trial["job_id"] else "",
            words.values(trial, names),
        ]
        yield "  ".join(part for part in parts if part)
    if len(snapshot.best) > _MOST_BEST:
        yield f"and {len(snapshot.best) - _MOST_BEST:,} more: `finetune search best`"


def render(snapshot: Snapshot, width: int, height: int, now: datetime) -> Group:
    """The head, and the trials that fit."""
    search = snapshot.search
    style = STATE_STYLES.get(search["state"], "")
    name = f"  {search['name']}" if search["name"] else ""
    parts: list[RenderableType] = [
        _one_line(f"{short_id(search['id'])}{name}", "bold"),
        _one_line(status(snapshot, now), style),
        _one_line(words.counts(search)),
        *(_one_line(line, "green") for line in best_lines(snapshot)),
    ]
    best = [trial["trial"] for trial in snapshot.best]
    room = height - len(parts) - _SPARE_ROWS
    shown = snapshot.trials[: max(1, min(ROWS, room))]
    if shown:
        parts.append(trial_table.for_terminal(shown, search["objectives"], width, best))
    return Group(*parts)


def _one_line(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


class LiveTable(Drawn[Snapshot]):
    """The trials."""

    def show(self, _search: Json, snapshot: Snapshot) -> None:
        size = self._live.console.size
        group = render(snapshot, size.width, size.height, datetime.now(UTC))
        self._live.update(group, refresh=True)


class Lines(Display[Snapshot]):
    """For a log or a pipe: a line for each trial that ends, and one when the counts change."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown_ended: set[int] | None = None
        self._last: tuple[Any, ...] | None = None

    def show(self, search: Json, snapshot: Snapshot) -> None:
        for text in self._ended(snapshot.trials, search["objectives"]):
            self._console.print(output.inline(text))
        mark = (search["state"], search["trials"], search["best"], words.waiting(search))
        if mark != self._last:
            self._last = mark
            text = f"{words.counts(search)}  {status(snapshot, datetime.now(UTC))}"
            self._console.print(output.inline(text))
            for text in best_lines(snapshot):
                self._console.print(output.inline(text))

    def _ended(self, trials: Sequence[Json], objectives: Sequence[Json]) -> Iterator[str]:
        """Those that have ended since the first snapshot."""
        over = {trial["trial"]: trial for trial in trials if trial["state"] in OVER}
        new = over.keys() - self._shown_ended if self._shown_ended is not None else set()
        self._shown_ended = (self._shown_ended or set()) | over.keys()
        names = words.short_names(path for trial in trials for path in trial["values"])
        for number in sorted(new):
            trial = over[number]
            what = words.scores(trial["scores"] or (), objectives) or words.why(trial)
            yield f"trial {number} {trial['state']}: {what}  {words.values(trial, names)}"
