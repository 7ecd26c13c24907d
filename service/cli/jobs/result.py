"""How a job ended: metrics before and after, what went wrong, where the model is."""

from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from service.cli.models import download
from service.cli.terminal import output
from service.cli.terminal.client import Json
from service.contract.states import JobState
from service.system import units

STATE_STYLES: Final = {
    JobState.SUCCEEDED: "bold green",
    JobState.FAILED: "bold red",
    JobState.CANCELLED: "yellow",
    JobState.RUNNING: "cyan",
}


def short_id(whole: str) -> str:
    """Enough of an id for a command that is shown; 11 digits are a millisecond."""
    return whole.rpartition("-")[2][:11]


def show_title(console: Console, item: Json, name: str | None) -> None:
    """Of a job or a search: its id and state, and its name if it is given."""
    style = STATE_STYLES.get(item["state"], "bold")
    named = f"  {output.inline(name)}" if name else ""
    console.print(f"{output.inline(item['id'])} [{style}]{output.inline(item['state'])}[/]{named}")


def show_result(job: Json) -> None:
    """How it ended: the metrics before and after, where the model is, or what went wrong."""
    console = output.stdout()
    show_title(console, job, name=None)
    show_outcome(console, job)


def show_outcome(console: Console, job: Json) -> None:
    if job["failure"]:
        _show_failure(console, job["failure"])
    result = job["result"] or {}
    if result.get("data_report"):
        console.print(data_table(result["data_report"]))
        for text in skipped_lines(result["data_report"]):
            console.print(output.inline(text))
    if result.get("metrics"):
        console.print(metrics_table(result["metrics"], result["baseline"]))
    for title, value in (
        *_model_lines(job),
        ("files", _files_of(job)),
        ("MLflow", job["mlflow_url"]),
        ("Hub", job["hub_url"]),
    ):
        if value:
            console.print(f"[bold]{title:<8}[/] {output.inline(value)}")


def _model_lines(job: Json) -> list[tuple[str, str | None]]:
    """Where the model is and what to do with it; nothing for a job that has made none."""
    result = job["result"] or {}
    if not result.get("model_path"):
        return []
    lines: list[tuple[str, str | None]] = [("model", result["model_path"])]
    if job["state"] != JobState.SUCCEEDED:
        return lines
    names = {artifact["name"] for artifact in result.get("artifacts", ())}
    folder = Path(download.folder_name(job["name"], job["id"]))
    load = download.how_to_load(job, names, folder)
    return [
        *lines,
        ("try it", f"finetune try {short_id(job['id'])}"),
        ("get it", f"finetune download {short_id(job['id'])}"),
        ("load it", load.removeprefix("Load it: ") if load else None),
    ]


def _files_of(job: Json) -> str | None:
    """For a job that makes no model: its files."""
    if job.get("spec", {}).get("mode", "train") == "train" or not job["result"]:
        return None
    return ", ".join(artifact["name"] for artifact in job["result"]["artifacts"])


def _show_failure(console: Console, failure: Json) -> None:
    console.print(f"[bold]{output.inline(failure['code'])}[/]: {escape(failure['message'])}")
    rows = failure.get("details", {}).get("bad_rows", [])
    if len(rows) > 1:
        splits = ("split",) if len({row.get("split") for row in rows}) > 1 else ()
        output.print_table((*splits, "place", "reason", "problem"), rows)
    console.print(escape(failure["action"]))


_DATA_COLUMNS: Final = ("rows_read", "rows_used", "rows_skipped", "realigned", "truncated")


def data_table(report: Json) -> Table:
    """What became of the rows of each split, and how long they are."""
    counts = (name.removeprefix("rows_") for name in _DATA_COLUMNS)
    table = _table("data", *counts, "tokens p50", "max")
    for split, found in report["splits"].items():
        tokens = found.get("tokens") or {}
        values = [found.get(name) for name in _DATA_COLUMNS]
        cells = [*values, tokens.get("p50"), tokens.get("max")]
        table.add_row(
            output.inline(split), *("" if value is None else f"{value:,}" for value in cells)
        )
    return table


def _table(first: str, *numbers: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first)
    for name in numbers:
        table.add_column(name, justify="right")
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
    if not baseline:
        table = _table("metric", "value")
        for name in sorted(metrics):
            table.add_row(output.inline(name), _value(name, metrics[name]))
        return table
    table = _table("metric", "before", "after")
    for name in sorted(metrics, key=lambda name: (name not in baseline, name)):
        before = baseline.get(name)
        first = "" if before is None else _value(name, before)
        table.add_row(output.inline(name), first, _value(name, metrics[name]))
    return table


def _value(name: str, value: Any) -> str:
    if name.endswith("_bytes"):
        return units.size(value)
    return units.number(value, 4)
