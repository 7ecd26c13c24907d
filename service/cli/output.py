"""How answers and errors look: tables for people on stdout, or JSON and nothing else."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

_UNLIMITED = 10_000

AsJson = Annotated[
    bool, typer.Option("--json", help="Machine-readable output on stdout, nothing else there.")
]


def stdout() -> Console:
    """Made at each use, so that a redirected stdout is respected."""
    return Console(highlight=False, soft_wrap=True, emoji=False)


def stderr() -> Console:
    return Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)


def print_json(value: Any) -> None:
    """One line, so that a stream of answers is JSON lines."""
    typer.echo(json.dumps(value, ensure_ascii=False))


def note(text: str) -> None:
    """A message for the person at the terminal, never part of the output."""
    stderr().print(escape(text), style="dim")


def complain(text: str) -> None:
    stderr().print(f"[bold red]finetune:[/] {escape(text)}")


def print_table(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """As wide as its content: an id that is cut or folded cannot be copied."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=True)
    for row in rows:
        table.add_row(*(escape(_cell(row.get(column))) for column in columns))
    Console(highlight=False, soft_wrap=True, emoji=False, width=_UNLIMITED).print(table)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def show_problem(problem: Mapping[str, Any]) -> None:
    """A problem document on stderr: what is wrong, and each fault with its place."""
    console = stderr()
    title = problem.get("title", "The request failed")
    reference = ", ".join(str(problem[name]) for name in ("status", "code") if problem.get(name))
    console.print(f"[bold red]{escape(str(title))}[/] [dim]({escape(reference)})[/]")
    detail, faults = problem.get("detail"), problem.get("errors") or []
    if detail and detail != title and not faults:
        console.print(escape(str(detail)))
    for fault in faults:
        path = str(fault.get("path") or "the request")
        console.print(f"  [yellow]{escape(path)}[/]: {escape(_message(fault))}")


def _message(fault: Mapping[str, Any]) -> str:
    text = str(fault.get("message", "")).rstrip(".")
    suggestion = fault.get("suggestion")
    # The service's own words often name it already.
    if suggestion and f"`{suggestion}`" not in text:
        text += f"; did you mean `{suggestion}`?"
    return text
