"""An attack, and its row in the table of results."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TypeVar

_T = TypeVar("_T")
_LONGEST_OUTCOME = 2000  # characters


class Scale(Enum):
    """SHORT is for CI, a few seconds each; FULL is what docs/reliability.md reports."""

    SHORT = auto()
    FULL = auto()

    def pick(self, *, short: _T, full: _T) -> _T:
        return full if self is Scale.FULL else short


@dataclass(frozen=True)
class Row:
    attack: str
    done: str
    """What was done, with numbers."""
    holds: str
    """What must hold."""
    outcome: str
    seconds: float
    ok: bool


Attack = Callable[[int, Scale], Row]
"""The seed decides every random moment and choice."""


@dataclass
class Report:
    """Filled in while an attack runs; every entry of `faults` is a broken promise."""

    attack: str
    holds: str
    done: str = ""
    outcome: str = ""
    faults: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def row(self) -> Row:
        outcome = "; ".join(self.faults)[:_LONGEST_OUTCOME] or self.outcome
        return Row(self.attack, self.done, self.holds, outcome, self.seconds, not self.faults)


@contextmanager
def timed(attack: str, holds: str) -> Iterator[Report]:
    """A report with the duration of the block."""
    report = Report(attack, holds)
    started = time.monotonic()
    try:
        yield report
    finally:
        report.seconds = time.monotonic() - started


def table(rows: Sequence[Row]) -> str:
    """Markdown, as docs/reliability.md has it."""
    head = ["| attack | what was done | what must hold | result | s | |"]
    return "\n".join([*head, "|---|---|---|---|---|---|", *map(line, rows)])


def line(row: Row) -> str:
    verdict = "holds" if row.ok else "**BROKEN**"
    cells = (row.attack, row.done, row.holds, row.outcome, f"{row.seconds:.0f}", verdict)
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
