"""Follows a job to its end: a live bar at a terminal, a line per change elsewhere."""

import time
from collections.abc import Callable
from typing import Any, Final, Protocol, Self

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from service.cli import output
from service.cli.client import Client, Json, UnreachableError
from service.cli.exit_codes import FAILED, INTERRUPTED, OK
from service.contract.states import ENDED, JobState

POLL_SECONDS = 0.5
UNREACHABLE_SECONDS = 120.0
"""How long to wait for a service that does not answer: it may be restarting."""
_STATE_STYLES = {
    JobState.SUCCEEDED: "bold green",
    JobState.FAILED: "bold red",
    JobState.CANCELLED: "yellow",
    JobState.RUNNING: "cyan",
}


# ---- following --------------------------------------------------------------------------------


def follow(client: Client, job_id: str, show: Callable[[Json], None]) -> Json:
    """Poll the job and `show` it each time until it has ended; returns its last page."""
    answered_at = time.monotonic()
    while True:
        try:
            job = client.get(f"/v1/jobs/{job_id}")
        except UnreachableError:
            if time.monotonic() - answered_at > UNREACHABLE_SECONDS:
                raise
            continue
        answered_at = time.monotonic()
        show(job)
        if job["state"] in ENDED:
            return job
        time.sleep(POLL_SECONDS)


def exit_status(job: Json) -> int:
    return OK if job["state"] == JobState.SUCCEEDED else FAILED


# ---- what a job looks like --------------------------------------------------------------------


def activity(job: Json) -> str:
    """What the job is doing or waiting for, in a few words."""
    if job["state"] == JobState.QUEUED:
        position = job.get("queue_position")
        place = f", number {position} in the queue" if position else ""
        return f"{job['stage']} · waiting{place}"
    if job["state"] == JobState.PAUSED:
        return f"{job['stage']} · paused: `finetune resume` continues it"
    words = [job["stage"], *([job["phase"].replace("_", " ")] if job["phase"] else [])]
    return " · ".join(words)


def numbers(progress: Json) -> str:
    """Step, loss, speed and time left, as far as they are known."""
    # While rows are still being read, their number is unknown.
    words = [f"{progress['step']}/{progress['of']}" if progress["of"] else f"{progress['step']}"]
    if progress.get("loss") is not None:
        words.append(f"loss {_short(progress['loss'])}")
    if progress.get("examples_per_second") is not None:
        words.append(f"{_short(progress['examples_per_second'])} examples/s")
    if progress.get("eta_seconds") is not None:
        words.append(f"ETA {clock(progress['eta_seconds'])}")
    return "  ".join(words)


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, int | float) else str(value)


def clock(seconds: Any) -> str:
    """75 → `1:15`."""
    if not isinstance(seconds, int | float):
        return str(seconds)
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def line(job: Json) -> str:
    progress = job.get("progress")
    words = [job["state"], activity(job), *([numbers(progress)] if progress else [])]
    return "  ".join(words)


def render(job: Json) -> Table:
    """One line: what it does, a bar, the numbers."""
    progress = job.get("progress") or {}
    style = _STATE_STYLES.get(job["state"], "")
    row = Table.grid(padding=(0, 2), expand=True)
    row.add_column(no_wrap=True)
    row.add_column(ratio=1)  # the bar takes what the words leave
    row.add_column(no_wrap=True)
    row.add_row(
        Text(activity(job), style=style),
        ProgressBar(total=100, completed=progress.get("percent") or 0),
        Text(numbers(progress) if progress else ""),
    )
    return row


# ---- showing it -------------------------------------------------------------------------------


class Display(Protocol):
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...
    def show(self, job: Json) -> None: ...


class _Quiet:
    """Nothing to set up and nothing to clear away."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return


class LiveBar:
    """A bar that is drawn over; each stage that is done leaves a line above it."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False)
        self._stage: str | None = None

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, job: Json) -> None:
        if self._stage is not None and job["stage"] != self._stage:
            self._live.console.print(f"[green]✓[/] {escape(self._stage)}")
        self._stage = job["stage"]
        self._live.update(Group(render(job)), refresh=True)


class Lines(_Quiet):
    """For a log or a pipe: a line when the activity changes and at every tenth of it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last: tuple[Any, ...] | None = None

    def show(self, job: Json) -> None:
        progress = job.get("progress") or {}
        mark = (job["state"], activity(job), int((progress.get("percent") or 0) // 10))
        if mark != self._last:
            self._last = mark
            self._console.print(escape(line(job)))


class JsonLines(_Quiet):
    """The job's page on stdout each time it changed."""

    def __init__(self) -> None:
        self._last: Json | None = None

    def show(self, job: Json) -> None:
        if job != self._last:
            self._last = job
            output.print_json(job)


def display(*, json: bool) -> Display:
    """The one that suits where the output goes."""
    if json:
        return JsonLines()
    console = output.stderr()
    return LiveBar(console) if console.is_terminal else Lines(console)


def watch(client: Client, job_id: str, *, json: bool) -> int:
    """Show the job until it has ended, then its result; returns the exit status."""
    try:
        with display(json=json) as shown:
            job = follow(client, job_id, shown.show)
    except KeyboardInterrupt:
        output.note(f"the job continues; `finetune cancel {job_id}` ends it")
        return INTERRUPTED
    if not json:
        show_result(job)
    return exit_status(job)


def watch_command(job_id: str, *, json: output.AsJson = False) -> None:
    """Follow a job to its end. With --json: its page, one line each time it changes."""
    with Client.from_environment() as client:
        raise typer.Exit(watch(client, client.job_id(job_id), json=json))


# ---- results ----------------------------------------------------------------------------------


def show_result(job: Json) -> None:
    """How it ended: the metrics before and after, where the model is, or what went wrong."""
    console = output.stdout()
    style = _STATE_STYLES.get(job["state"], "bold")
    console.print(f"{escape(job['id'])} [{style}]{job['state']}[/]")
    if job["failure"]:
        _show_failure(console, job["failure"])
    result = job["result"] or {}
    if result.get("data_report"):
        console.print(data_table(result["data_report"]))
        for text in skipped_lines(result["data_report"]):
            console.print(escape(text))
    if result.get("metrics"):
        console.print(metrics_table(result["metrics"], result["baseline"]))
    for title, value in (
        ("model", result.get("model_path")),
        ("files", _files_of(job)),
        ("MLflow", job["mlflow_url"]),
        ("Hub", job["hub_url"]),
    ):
        if value:
            console.print(f"[bold]{title}[/]  {escape(value)}")


def _files_of(job: Json) -> str | None:
    """For a job that makes no model: its files."""
    if job.get("spec", {}).get("mode", "train") == "train" or not job["result"]:
        return None
    return ", ".join(artifact["name"] for artifact in job["result"]["artifacts"])


def _show_failure(console: Console, failure: Json) -> None:
    console.print(f"[bold]{escape(failure['code'])}[/]: {escape(failure['message'])}")
    rows = failure.get("details", {}).get("bad_rows", [])
    if len(rows) > 1:
        splits = ("split",) if len({row.get("split") for row in rows}) > 1 else ()
        output.print_table((*splits, "place", "reason", "problem"), rows)
    console.print(f"What to do: {escape(failure['action'])}")


_DATA_COLUMNS: Final = ("rows_read", "rows_used", "rows_skipped", "realigned", "truncated")


def data_table(report: Json) -> Table:
    """What became of the rows of each split, and how long they are."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("data")
    for name in (*_DATA_COLUMNS, "tokens p50", "max"):
        table.add_column(name.removeprefix("rows_"), justify="right")
    for split, found in report["splits"].items():
        tokens = found.get("tokens") or {}
        values = [found.get(name) for name in _DATA_COLUMNS]
        cells = [*values, tokens.get("p50"), tokens.get("max")]
        table.add_row(escape(split), *("" if value is None else f"{value:,}" for value in cells))
    return table


def skipped_lines(report: Json) -> list[str]:
    """Why rows were left out, one line a split."""
    return [
        f"{split}, skipped: " + ", ".join(f"{name} {count:,}" for name, count in reasons.items())
        for split, found in report["splits"].items()
        if (reasons := found["skipped_by_reason"])
    ]


def metrics_table(metrics: Json, baseline: Json) -> Table:
    """Those that have a baseline first; a job that does not train has none."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("metric")
    if not baseline:
        table.add_column("value", justify="right")
        for name in sorted(metrics):
            table.add_row(name, _four(metrics[name]))
        return table
    table.add_column("before", justify="right")
    table.add_column("after", justify="right")
    for name in sorted(metrics, key=lambda name: (name not in baseline, name)):
        before = baseline.get(name)
        table.add_row(name, "" if before is None else _four(before), _four(metrics[name]))
    return table


def _four(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, int | float) else str(value)
