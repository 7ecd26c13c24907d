"""The rows of `finetune try` for a model that answers conversations."""

from collections.abc import Mapping
from typing import Any, Final

from service.cli.terminal.client import Json
from service.cli.terminal.exit_codes import UsageError

COLUMNS: Final = {"chat": "messages", "preference": "prompt"}
"""Task → the column with the request."""
_Message = dict[str, str]


def with_system(task: str, row: Json, system: str, place: str) -> Json:
    """The row of this place, with the system's turn unless it has one. Raises UsageError for a row
    without a list of turns."""
    column = COLUMNS[task]
    turns = row.get(column)
    if not isinstance(turns, list):
        raise UsageError(
            f"{place}: --system needs a list of turns in `{column}`, and this row has none"
        )
    first = turns[0] if turns else None
    if isinstance(first, dict) and first.get("role") in ("system", "developer"):
        return row
    return {**row, column: [_message("system", system), *turns]}


class Conversation:
    """The turns of a user and the model; each turn is answered with all before it."""

    def __init__(self, task: str, system: str | None) -> None:
        self._column = COLUMNS[task]
        self._beginning = [] if system is None else [_message("system", system)]
        self._messages: list[_Message] = []

    def says(self, text: str) -> Json:
        """The row of the user's next turn, in place of a turn that was not answered."""
        if self._messages and self._messages[-1]["role"] == "user":
            self._messages.pop()
        self._messages.append(_message("user", text))
        return {self._column: [*self._beginning, *self._messages]}

    def answered(self, answer: Mapping[str, Any]) -> None:
        self._messages.append(_message("assistant", str(answer["prediction"])))

    def restart(self) -> None:
        self._messages.clear()


def _message(role: str, content: str) -> _Message:
    return {"role": role, "content": content}
