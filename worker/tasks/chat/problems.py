"""All problems of one row, reported together."""

from dataclasses import dataclass, field
from typing import Final

from service.contract.failures import FailureCode
from worker.data.table import RowError

_NAMED: Final = 5


@dataclass
class Problems:
    found: list[tuple[str, str]] = field(default_factory=list)
    """(sentence, reason) in the row's order."""

    def add(self, problem: str, reason: str) -> None:
        self.found.append((problem, reason))

    def require_none(self) -> None:
        """Raises RowError that names the first problems and counts the rest.

        The row counts under the reason of the first.
        """
        if not self.found:
            return
        message = "; ".join(problem for problem, _ in self.found[:_NAMED])
        more = len(self.found) - _NAMED
        message += f"; and {more} more" if more > 0 else ""
        raise RowError(message, FailureCode.UNREADABLE_ROW, reason=self.found[0][1])
