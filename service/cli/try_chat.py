"""The rows of `finetune try` for a model that answers conversations."""

from collections.abc import Mapping
from typing import Any, Final

from service.cli.client import Json
from service.cli.exit_codes import UsageError

COLUMNS: Final = {"chat": "messages", "preference": "prompt"}
"""Task → the column with the request."""
_Message = dict[str, str]


def row(task: str, text: str, system: str | None) -> Json:
    """A conversation of one turn."""
    return Conversation(task, system).says(text)


def with_system(task: str, row: Json, system: str | None) -> Json:
    """The row, with the system's turn unless it has one. Raises UsageError for a row without a list
    of turns."""
    if system is None:
        return row
    column = COLUMNS[task]
    turns = row.get(column)
    if not isinstance(turns, list):
        raise UsageError(f"--system needs a list of turns in `{column}`, and this row has none")
    return row if _begins_with_system(turns) else {**row, column: [*_beginning(system), *turns]}


def last_turn(row: Mapping[str, Any]) -> str | None:
    """What the user has said last, in any form of a row; None for a row that is none of them."""
    messages = row.get("messages", row.get("prompt", row.get("instruction")))
    if isinstance(messages, list) and messages and isinstance(messages[-1], dict):
        return str(messages[-1].get("content"))
    return messages if isinstance(messages, str) else None


class Conversation:
    """What a person and the model have said; each turn is answered with all before it."""

    def __init__(self, task: str, system: str | None) -> None:
        self._column = COLUMNS[task]
        self._system = system
        self._messages: list[_Message] = []

    def says(self, text: str) -> Json:
        """The row of the user's next turn, in place of a turn that was not answered."""
        if self._messages and self._messages[-1]["role"] == "user":
            self._messages.pop()
        self._messages.append(_message("user", text))
        return {self._column: [*_beginning(self._system), *self._messages]}

    def answered(self, answer: Mapping[str, Any]) -> None:
        self._messages.append(_message("assistant", str(answer["prediction"])))

    def restart(self) -> None:
        self._messages.clear()


def _beginning(system: str | None) -> list[_Message]:
    return [] if system is None else [_message("system", system)]


def _begins_with_system(turns: list[Any]) -> bool:
    first = turns[0] if turns else None
    return isinstance(first, dict) and first.get("role") in ("system", "developer")


def _message(role: str, content: str) -> _Message:
    return {"role": role, "content": content}
