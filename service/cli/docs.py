"""`finetune docs`: the written documentation, from the installed package, without internet."""

import re
from collections.abc import Iterator
from difflib import get_close_matches
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Annotated

import typer

from service.cli.terminal import output
from service.cli.terminal.exit_codes import FAILED, UsageError


def docs(
    page: Annotated[
        str | None, typer.Argument(help="A page to read; without it, all pages are listed.")
    ] = None,
    search: Annotated[
        str | None,
        typer.Option(metavar="WORDS", help="List the lines that contain all of these words."),
    ] = None,
) -> None:
    """Read the documentation offline."""
    # `manual` is a link to docs/, and the wheel holds its files.
    folder = files("service.cli") / "manual"
    pages = {name: file.read_text(encoding="utf-8") for name, file in sorted(_walk(folder))}
    if page is not None:
        chosen = _find(page, pages)
        pages = {chosen: pages[chosen]}
    if search is not None:
        _show_matches(search.lower().split(), pages)
    elif page is not None:
        _show(pages[chosen])
    else:
        titles = [
            {"page": name, "title": text.splitlines()[0].removeprefix("# ").replace("`", "")}
            for name, text in pages.items()
        ]
        output.print_table(("page", "title"), titles)


def _walk(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".md"):
            yield f"{prefix}{entry.name.removesuffix('.md')}", entry


def _find(wanted: str, pages: dict[str, str]) -> str:
    """The page of this name, or the only one whose name contains it."""
    name = wanted.lower().removesuffix(".md")
    containing = [page for page in pages if name in page]
    if name in pages or len(containing) == 1:
        return name if name in pages else containing[0]
    near = containing or get_close_matches(name, pages)
    hint = f"did you mean {', '.join(near)}?" if near else "`finetune docs` lists all pages."
    raise UsageError(f"there is no page {wanted!r}: {hint}")


def _show(text: str) -> None:
    """Formatted for a terminal; plain Markdown for a file or a pipe."""
    console = output.stdout(soft_wrap=False)
    if console.is_terminal:
        from rich.markdown import Markdown  # late: every other command would wait for it

        console.print(Markdown(text))
    else:
        output.print_text(text)


def _show_matches(words: list[str], pages: dict[str, str]) -> None:
    found = [
        {"page": name, "line": number, "text": _excerpt(line, words[0])}
        for name, text in pages.items()
        for number, line in enumerate(text.splitlines(), 1)
        if all(word in line.lower() for word in words)
    ]
    if not found:
        output.note("No line contains all of these words.")
        raise typer.Exit(FAILED)
    output.print_table(("page", "line", "text"), found)


def _excerpt(line: str, word: str, width: int = 90) -> str:
    """The part of a long line around the first occurrence of `word`."""
    start = max(0, line.lower().index(word) - width // 2)
    text = re.sub(r"\s+", " ", line[start : start + width])
    return f"{'…' if start else ''}{text.strip()}{'…' if start + width < len(line) else ''}"
