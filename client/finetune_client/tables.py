"""Tables: HTML in notebooks, text where they are printed. HTML has everything that comes from the
service escaped."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from typing import Any, Final, TypeVar

R = TypeVar("R")
MOST_ROWS: Final = 100
OF_JOBS: Final = ("id", "name", "task", "state", "stage", "created_at")
_LONGEST: Final = 200
_LONGEST_IN_TEXT: Final = 40


class Table(list[R]):
    """A list of models or mappings that is shown as a table: `Table(job.checkpoints())`.

    `columns` are names of fields; without them, those of the first row that hold one value.
    """

    def __init__(
        self, rows: Iterable[R] = (), columns: Sequence[str] = (), caption: str = ""
    ) -> None:
        super().__init__(rows)
        self._columns = columns
        self.caption = caption

    @property
    def columns(self) -> Sequence[str]:
        if self._columns or not self:
            return self._columns
        return [name for name, value in _fields(self[0]).items() if _is_short(value)]

    def _repr_html_(self) -> str:
        more = len(self) - MOST_ROWS
        caption = f"{self.caption} (the first {MOST_ROWS} of {len(self)})".strip()
        return _html(caption if more > 0 else self.caption, self.columns, self._cells())

    def __repr__(self) -> str:
        cells = [list(self.columns), *([_text(each) for each in row] for row in self._cells())]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in cells
        ]
        more = len(self) - MOST_ROWS
        return "\n".join([*lines, *([f"… and {more} more"] if more > 0 else [])])

    def _cells(self) -> list[list[Any]]:
        columns = self.columns
        return [[_fields(row).get(name) for name in columns] for row in self[:MOST_ROWS]]


def of_fields(caption: str, fields: Mapping[str, Any]) -> str:
    """HTML with two columns: each field that has a value, and the value."""
    rows = [(name, shown(value)) for name, value in fields.items() if value not in (None, [], {})]
    return _html(caption, (), rows)


def _fields(row: Any) -> Mapping[str, Any]:
    """Those of a model are its attributes, an unknown one included."""
    fields = row if isinstance(row, Mapping) else dict(row)
    return {name: shown(value) for name, value in fields.items()}


def shown(value: Any) -> Any:
    """Without the secret of a webhook: notebooks and logs keep what is shown."""
    return "hidden" if isinstance(value, str) and value.startswith("whsec_") else value


def _is_short(value: Any) -> bool:
    return isinstance(value, str) or not isinstance(value, Iterable)


def _html(caption: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    head = "".join(f"<th>{_cell(name)}</th>" for name in columns)
    body = "".join(
        f"<tr>{''.join(f'<td>{_cell(value)}</td>' for value in row)}</tr>" for row in rows
    )
    header = f"<thead><tr>{head}</tr></thead>" if head else ""
    return f"<table><caption>{escape(caption)}</caption>{header}<tbody>{body}</tbody></table>"


def _plain(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat(" ", "seconds")
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def _cell(value: Any) -> str:
    return escape(_shortened(_plain(value), _LONGEST))


def _text(value: Any) -> str:
    """Control characters would change what a terminal shows."""
    text = "".join(each if each.isprintable() else "?" for each in _plain(value))
    return _shortened(text, _LONGEST_IN_TEXT)


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
