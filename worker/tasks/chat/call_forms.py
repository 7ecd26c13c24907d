"""The form in which a chat template reads calls of tools, which differs between families of models.

Most read arguments as an object, DeepSeek's as its JSON text. A turn that calls without a text has
no `content` for most, and null for DeepSeek-R1's, which shows no calls of a turn that has one.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from worker.data.table import RowError
from worker.tasks.chat.conversation import Conversation, Message
from worker.tasks.chat.jinja import Template

_ARGUMENTS: Final = {"number": "v7q9"}


@dataclass(frozen=True)
class CallForm:
    content: Mapping[str, Any]
    """What a turn has that calls without a text."""
    is_text: bool
    """Whether arguments are JSON text."""

    @classmethod
    def of(cls, template: Template) -> "CallForm":
        """The first form in which the template shows a call; the usual one if it shows none."""
        if "tool_calls" not in template.text:
            return _FORMS[0]
        return next((form for form in _FORMS if form._is_shown(template)), _FORMS[0])

    def _is_shown(self, template: Template) -> bool:
        called = self.written(_CALL)
        messages = [_PROBE.messages[0], called, *_PROBE.messages[2:]]
        try:
            text, _ = template.render(messages, _PROBE)
        except RowError:
            return False
        return _ARGUMENTS["number"] in text and str(_ARGUMENTS) not in text  # Python's own form

    def written(self, turn: Message) -> Message:
        """`turn`, which has calls, as the template reads it."""
        rest = {key: value for key, value in turn.items() if key != "content" or value}
        made = {**self.content, **rest}
        if not self.is_text:
            return made
        return {**made, "tool_calls": [_with_text(call) for call in turn["tool_calls"]]}


_FORMS: Final = (
    CallForm({}, is_text=False),
    CallForm({"content": ""}, is_text=False),
    CallForm({"content": ""}, is_text=True),
    CallForm({"content": None}, is_text=True),
    CallForm({"content": None}, is_text=False),
)
_CALL: Final = {
    "role": "assistant",
    "tool_calls": [
        {
            "id": "call00001",  # Mistral's have nine characters
            "type": "function",
            "function": {"name": "add", "arguments": _ARGUMENTS},
        }
    ],
}
_PROBE: Final = Conversation(
    (
        {"role": "user", "content": "a"},
        _CALL,
        {"role": "tool", "content": "b", "name": "add", "tool_call_id": "call00001"},
        {"role": "assistant", "content": "c"},
    ),
    None,
    1,
)


def _with_text(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = json.dumps(function["arguments"], ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}


def require_shown(messages: Sequence[Message], text: str) -> None:
    """Raises RowError if the text has the name of a function less often than it is called."""
    names = Counter(
        call["function"]["name"] for turn in messages for call in turn.get("tool_calls", ())
    )
    lost = next((name for name, calls in names.items() if text.count(name) < calls), None)
    if lost is not None:
        raise RowError(
            f"the chat template does not show each call of {lost[:40]!r}: leave out the `content` "
            "of turns with calls, or set `task.chat_template` to a template that shows both, such "
            "as qwen3",
            reason="not_shown",
        )
