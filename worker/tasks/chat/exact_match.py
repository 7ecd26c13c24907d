"""The result that a regular expression finds in an answer, and how many results are right."""

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import regex

from worker.failures import invalid_option

OPTION: Final = "task.generate.exact_match"
_MOST_CHARACTERS: Final = 100_000
"""The end of an answer that is searched: the last match counts."""
_SECONDS: Final = 2.0
"""For one answer. Some expressions need exponential time, and `re` cannot be interrupted."""


class ResultPattern:
    def __init__(self, pattern: str) -> None:
        """StageError(invalid_option) if the expression cannot be compiled."""
        try:
            self._pattern: Any = regex.compile(pattern)
        except regex.error as error:
            raise invalid_option(OPTION, f"is not a valid regular expression: {error}") from error

    def result(self, answer: str) -> str | None:
        """The first group of the last match, or all of it without groups, stripped; None without a
        match. TimeoutError if the search takes too long."""
        text = answer[-_MOST_CHARACTERS:]
        last = deque(self._pattern.finditer(text, timeout=_SECONDS), maxlen=1)
        if not last:
            return None
        found: str | None = last[0][1 if self._pattern.groups else 0]
        return None if found is None else found.strip()

    def result_or_none(self, answer: str) -> str | None:
        """As `result`; None if the search takes too long."""
        try:
            return self.result(answer)
        except TimeoutError:
            return None


def share(found: Sequence[str | None], expected: Sequence[str | None]) -> float:
    """Of the answers that have an expected result, how many have that result."""
    asked = [(one, right) for one, right in zip(found, expected, strict=True) if right is not None]
    return sum(one == right for one, right in asked) / len(asked)
