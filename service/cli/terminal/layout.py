"""Text that fits a terminal: wrapped lines behind a label."""

import shutil
import textwrap
from collections.abc import Iterable, Iterator
from typing import Final

_WIDEST: Final = 100
_NARROWEST: Final = 40


def width() -> int:
    """Columns of the terminal (or COLUMNS), within what is pleasant to read."""
    return max(_NARROWEST, min(_WIDEST, shutil.get_terminal_size().columns))


def labelled(rows: Iterable[tuple[str, str]], indent: int = 2) -> Iterator[str]:
    """Each row as `  label  text`, the texts under each other and wrapped."""
    given = list(rows)
    column = indent + max((len(label) for label, _ in given), default=0) + 2
    for label, text in given:
        first = f"{' ' * indent}{label}".ljust(column)
        yield from textwrap.wrap(
            text or "-",
            width(),
            initial_indent=first,
            subsequent_indent=" " * column,
            break_on_hyphens=False,
        )
