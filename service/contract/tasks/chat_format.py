"""Our reasons for bad rows → OpenAI's names for them in its published checks of conversations.

Preferences have no published checks; their turns are checked as those of conversations are.
"""

from collections.abc import Mapping
from typing import Final

_OF_TURNS: Final = {
    "not_an_object": "data_type",
    "missing_role": "message_missing_key",
    "unknown_key": "message_unrecognized_key",
    "unknown_role": "unrecognized_role",
    "missing_content": "missing_content",
    "invalid_content": "missing_content",
    "empty_assistant_turn": "missing_content",
    "no_assistant_turn": "example_missing_assistant_message",
}
_OF_CONVERSATIONS: Final = {
    **_OF_TURNS,
    "missing_value": "missing_messages_list",
    "not_a_list": "missing_messages_list",
    "no_turns": "missing_messages_list",
}
_BY_TASK: Final[Mapping[str, Mapping[str, str]]] = {
    "chat": _OF_CONVERSATIONS,
    "preference": _OF_TURNS,
}
FEWEST_EXAMPLES: Final = 10
"""OpenAI refuses files with fewer; we train on them and say so."""


def openai_checks(task: str) -> Mapping[str, str]:
    """Reason of a bad row → the name of OpenAI's check; empty for tasks that OpenAI lacks."""
    return _BY_TASK.get(task, {})
