"""How answers and errors look: tables for people on stdout, or JSON and nothing else.

Everything that the command line prints goes through this module, which escapes it: names, logs and
answers are untrusted.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table

from service.system import escaping
from service.system.masking import mask

_UNLIMITED = 10_000

AsJson = Annotated[
    bool, typer.Option("--json", help="Machine-readable output on stdout, nothing else there.")
]


class _Console(Console):
    """Styles, bars and tables are its own; all text in them is escaped."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield segment._replace(text=escaping.terminal(segment.text))


def _console(*, soft_wrap: bool = True, **options: Any) -> Console:
    return _Console(highlight=False, soft_wrap=soft_wrap, emoji=False, **options)


def stdout(*, soft_wrap: bool = True) -> Console:
    """Created at each use, so that a redirected stdout is respected."""
    return _console(soft_wrap=soft_wrap)


def stderr() -> Console:
    return _console(stderr=True)


def print_text(text: str) -> None:
    """Text of several lines as it is, for people and for scripts."""
    typer.echo(escaping.terminal(text), nl=False)
    sys.stdout.flush()


def print_line(text: str) -> None:
    print_lines([text])


def print_lines(lines: Iterable[str]) -> None:
    """Each as one line, also where a name in it has a line end."""
    print_text("".join(text.replace("\n", "\\n") + "\n" for text in lines))


def tab_separated(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """A table for scripts, with nothing cut; the first line names the columns."""
    yield "\t".join(columns)
    for row in rows:
        values = (row[column] for column in columns)
        yield "\t".join("" if value is None else escaping.line(str(value)) for value in values)


def print_json(value: Any) -> None:
    """One line, so that a stream of answers is JSON lines."""
    typer.echo(escaping.json_line(value))


def print_answer(answer: Any, text: str, *, as_json: bool) -> None:
    """What the service answered, as JSON or as one line for people."""
    if as_json:
        print_json(answer)
    else:
        print_line(text)


def print_rows(
    answer: Any, columns: Sequence[str], rows: Iterable[Mapping[str, Any]], *, as_json: bool
) -> None:
    """What the service answered, as JSON or as a table for people."""
    if as_json:
        print_json(answer)
    else:
        print_table(columns, rows)


def print_state(item: Mapping[str, Any], *, as_json: bool) -> None:
    """What a job or a search is after an action."""
    print_answer(item, f"{item['id']} is {item['state']}", as_json=as_json)


def print_deleted(item: Mapping[str, Any], *, as_json: bool) -> None:
    print_answer(item, f"{item['id']} is deleted", as_json=as_json)


def note_more(page: Mapping[str, Any], cursor: str = "id") -> None:
    """How to read the next page of a list, if there is one."""
    if page["has_more"]:
        note(f"there are more: --after {page['data'][-1][cursor]}")


def prompt(text: str) -> None:
    """A question on stderr; the cursor stays behind it."""
    typer.echo(escaping.terminal(text), nl=False, err=True)


def inline(text: object) -> str:
    """A value within a line of markup for `Console.print`."""
    return escape(escaping.line(str(text)))


def note(text: str) -> None:
    """A message for the person at the terminal, never part of the output."""
    stderr().print(escape(mask(text)), style="dim")


def complain(text: str) -> None:
    stderr().print(f"[bold red]finetune:[/] {escape(mask(text))}")


def print_table(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """As wide as its content: an id that is cut or folded cannot be copied."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=True)
    for row in rows:
        table.add_row(*(escape(_cell(row.get(column))) for column in columns))
    _console(width=_UNLIMITED).print(table)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    return escaping.line(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def show_problem(problem: Mapping[str, Any]) -> None:
    """A problem document on stderr: what is wrong, and each fault with its place."""
    console = stderr()
    title = problem.get("title", "The request failed")
    reference = ", ".join(str(problem[name]) for name in ("status", "code") if problem.get(name))
    console.print(f"[bold red]{escape(str(title))}[/] [dim]({escape(reference)})[/]")
    detail, faults = problem.get("detail"), problem.get("errors") or []
    if detail and detail != title and not faults:
        console.print(escape(mask(str(detail))))
    for fault in faults:
        path = str(fault.get("path") or "the request")
        console.print(f"  [yellow]{escape(path)}[/]: {escape(mask(_message(fault)))}")


def _message(fault: Mapping[str, Any]) -> str:
    text = str(fault.get("message", "")).rstrip(".")
    suggestion = fault.get("suggestion")
    # The service's own words often name it already.
    if suggestion and f"`{suggestion}`" not in text:
        text += f"; did you mean `{suggestion}`?"
    return text
