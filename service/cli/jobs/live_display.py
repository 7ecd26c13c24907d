"""How a job that is watched looks: a live bar at a terminal, lines or JSON elsewhere."""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Generic, Self, TypeVar

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from service.cli.jobs.result import STATE_STYLES
from service.cli.terminal import output
from service.cli.terminal.client import Json
from service.cli.terminal.wait_reasons import activity
from service.contract.states import ENDED, JobState
from service.event_sentences import Narrator, of_metric
from service.system import units

T = TypeVar("T")
_SHOWN_EVENTS: Final = {
    "notice": "dim",
    "checkpoint": "",
    "resumed": "",
    "attempt_failed": "red",
    "lease_expired": "red",
    "released": "yellow",
    "retried": "",
    "stage_finished": "green",
}
"""Events that leave a line, and its style; the bar shows the others while they last."""


def numbers(progress: Json) -> str:
    """Step, loss, speed and time left, as far as they are known."""
    # While rows are still being read, their number is unknown.
    words = [f"{progress['step']}/{progress['of']}" if progress["of"] else f"{progress['step']}"]
    if progress.get("loss") is not None:
        words.append(f"loss {units.number(progress['loss'])}")
    if progress.get("examples_per_second") is not None:
        words.append(f"{units.number(progress['examples_per_second'])} examples/s")
    if progress.get("eta_seconds") is not None:
        words.append(f"ETA {units.clock(progress['eta_seconds'])}")
    return "  ".join(words)


def line(job: Json, memory: str = "", now: datetime | None = None) -> str:
    progress = job.get("progress")
    words = [job["state"], activity(job, now), *([numbers(progress)] if progress else []), memory]
    return "  ".join(word for word in words if word)


def render(job: Json, memory: str = "", now: datetime | None = None) -> Table:
    """One line: what it does, a bar, the numbers. A job that waits has no bar."""
    progress = job.get("progress") or {}
    row = Table.grid(padding=(0, 2), expand=True)
    style = STATE_STYLES.get(job["state"], "")
    if job["state"] in (JobState.QUEUED, JobState.PAUSED):
        row.add_column(overflow="fold")
        row.add_row(Text(activity(job, now), style=style))
        return row
    row.add_column(no_wrap=True)
    row.add_column(ratio=1)  # the bar takes what the words leave
    row.add_column(no_wrap=True)
    words = [numbers(progress) if progress else "", memory]
    what = activity(job, now)
    if job["state"] in (JobState.PAUSING, JobState.CANCELLING):
        what = f"{what} · {job['state']}"
    row.add_row(
        Text(what, style=style),
        ProgressBar(total=100, completed=progress.get("percent") or 0),
        Text("  ".join(word for word in words if word)),
    )
    return row


class Telling:
    """The lines to print of the history, with their styles; and the memory in use."""

    def __init__(self) -> None:
        self._narrator = Narrator()
        self.memory = ""

    def lines(self, items: Sequence[Json]) -> Iterator[tuple[str, str]]:
        for item in items:
            if item.get("kind") == "system":
                self.memory = _memory(item["values"])
            elif item.get("kind") == "eval":
                yield _at(item, of_metric(item)), "bold"
            elif "type" in item:
                sentence = self._narrator.say(item)
                if item["type"] in _SHOWN_EVENTS:
                    yield _at(item, sentence), _SHOWN_EVENTS[item["type"]]


def _at(item: Json, sentence: str) -> str:
    return f"{units.moment(item['at']).astimezone():%H:%M:%S} {' '.join(sentence.split())}"


def _memory(values: Json) -> str:
    """`RAM 1.2 GiB`, and what the job's GPUs hold together."""
    on_gpus = [value for name, value in values.items() if name.endswith("_memory_used_bytes")]
    words = (
        [f"RAM {units.size(values['memory_rss_bytes'])}"] if "memory_rss_bytes" in values else []
    )
    return "  ".join([*words, *([f"GPU {units.size(sum(on_gpus))}"] if on_gpus else [])])


class Display(Generic[T]):
    """Shows a page each time it is read, and what was read with it. Nothing to set up and nothing
    to clear away, unless it draws."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def say(self, text: str) -> None:
        output.note(text)

    def show(self, page: Json, new: T) -> None:
        raise NotImplementedError


class Drawn(Display[T]):
    """Is redrawn at each update."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        """Above what is drawn; what is written past its console would be mixed with it."""
        self._live.console.print(output.inline(text), style="dim")


class JsonLines(Display[Any]):
    """The page on stdout each time it changed."""

    def __init__(self) -> None:
        self._last: Json | None = None

    def show(self, page: Json, _new: Any) -> None:
        if page != self._last:
            self._last = page
            output.print_json(page)


class LiveBar(Drawn[Sequence[Json]]):
    """A bar, and above it a line for each thing worth one."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._telling = Telling()

    def show(self, job: Json, items: Sequence[Json]) -> None:
        for text, style in self._telling.lines(items):
            self._live.console.print(output.inline(text), style=style)
        self._live.transient = job["state"] in ENDED  # the result follows
        bar = render(job, self._telling.memory, datetime.now(UTC))
        self._live.update(Group(bar), refresh=True)


class Lines(Display[Sequence[Json]]):
    """For a log or a pipe: a line when the activity changes and at every tenth of it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._telling = Telling()
        self._last: tuple[Any, ...] | None = None

    def show(self, job: Json, items: Sequence[Json]) -> None:
        for text, _ in self._telling.lines(items):
            self._console.print(output.inline(text))
        progress = job.get("progress") or {}
        mark = (job["state"], activity(job), int((progress.get("percent") or 0) // 10))
        if mark != self._last:
            self._last = mark
            self._console.print(output.inline(line(job, self._telling.memory)))


def display(
    live: Callable[[Console], Display[T]], lines: Callable[[Console], Display[T]], *, json: bool
) -> Display[T]:
    """The one that suits where the output goes."""
    if json:
        return JsonLines()
    console = output.stderr()
    return live(console) if console.is_terminal else lines(console)
