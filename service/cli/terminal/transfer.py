"""Shows how far a large file has been read or sent."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from service.cli.terminal import output

LARGE: Final = 8 * 1000**2
"""Bytes; smaller files are done in a moment."""


@contextmanager
def transfer(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """A function to call with the number of bytes of each part that is done.

    A bar at a terminal, one line elsewhere, and nothing for a small file.
    """
    console = output.stderr()
    if total < LARGE:
        yield lambda _done: None
    elif not console.is_terminal:
        output.note(f"{label} ({file_size(total)})")
        yield lambda _done: None
    else:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(compact=True),
        )
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(label, total=total)
            yield lambda done: bar.advance(task, done)


def file_size(size: int) -> str:
    """`312 bytes`, `4.1 kB`, `30.0 MB`."""
    if size < 1000:
        return f"{size} bytes"
    return f"{size / 1000:,.1f} kB" if size < 1000**2 else f"{size / 1000**2:,.1f} MB"
