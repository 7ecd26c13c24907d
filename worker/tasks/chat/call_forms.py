"""How a chat template reads calls of tools, which differs between families of models.

Most read arguments as an object, DeepSeek's as its JSON text. A turn that calls without a text has
no `content` for most, and null for DeepSeek-R1's. Some silently leave out the second call of a
turn, or the text of a turn that calls; rows that have these are refused.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from worker.data.table import JobEndingRowError, RowError
from worker.failures import invalid_option
from worker.tasks.chat.conversation import Conversation, Message
from worker.tasks.chat.jinja import Template
from worker.tasks.chat.templates import OPTION

_TEXT: Final = "w7q9"
_VALUES: Final = ("v7q9", "v8q9")


@dataclass(frozen=True)
class CallForm:
    content: Mapping[str, Any]
    """The `content` of a turn that calls without a text."""
    is_text: bool
    """Whether arguments are JSON text."""

    def written(self, turn: Message) -> dict[str, Any]:
        """`turn`, which has calls, in this form."""
        rest = {key: value for key, value in turn.items() if key != "content" or value}
        made = {**self.content, **rest}
        if self.is_text:
            made["tool_calls"] = [_with_text(call) for call in turn["tool_calls"]]
        return made


@dataclass(frozen=True)
class _Probe:
    template: Template
    with_tools: bool

    def shows(self, form: CallForm, turn: Message, words: Collection[str]) -> bool | None:
        """Whether the template writes these words of the turn; None if it refuses it.

        StageError(invalid_option) if it takes too much time or memory.
        """
        tools = [_TOOL] if self.with_tools else None
        row = Conversation([_ASKED, form.written(turn), _RESULT, _ANSWER], tools, 1)
        try:
            text, _ = self.template.render(row.messages, row)
        except JobEndingRowError as error:
            message = "takes too much time or memory to write a call of a tool: correct its loops"
            raise invalid_option(OPTION, message) from error
        except RowError:
            return None
        # A template that expects text writes an object in Python's notation, with single quotes.
        has_python = any(str({"number": value}) in text for value in _VALUES)
        return all(word in text for word in words) and not has_python


@dataclass(frozen=True)
class Calls:
    """The form, and what the template shows in it."""

    form: CallForm
    one: bool
    """The only call of a turn."""
    several: bool
    """Each call of a turn."""
    with_text: bool
    """Both the text and the calls of a turn."""

    @classmethod
    def from_template(cls, template: Template, *, with_tools: bool) -> "Calls":
        """By rendering short conversations. A template that refuses them is accepted here, and
        refuses the rows instead."""
        if "tool_calls" not in template.text:
            return cls(_FORMS[0], one=False, several=False, with_text=False)
        probe = _Probe(template, with_tools)
        one, two = _turn(_VALUES[:1]), _turn(_VALUES)
        both = {**one, "content": _TEXT}
        shown = [probe.shows(form, one, _VALUES[:1]) for form in _FORMS]
        form = _FORMS[shown.index(True) if True in shown else 0]
        return cls(
            form,
            one=True in shown or False not in shown,
            several=probe.shows(form, two, _VALUES) is not False,
            with_text=probe.shows(form, both, (_TEXT, _VALUES[0])) is not False,
        )

    def written(self, turn: Message, place: int) -> Message:
        """`turn`, which has calls, as the template reads it. RowError if it would lose a part."""
        lost = None
        if not self.one:
            lost = "the calls of a turn: remove them"
        elif not self.several and len(turn["tool_calls"]) > 1:
            lost = "each call of a turn that has several: make each call a turn, before its result"
        elif not self.with_text and turn.get("content"):
            lost = "both the `content` and the calls of a turn: make them two turns"
        if lost is not None:
            raise RowError(
                f"messages[{place}]: the chat template does not show {lost}, or set "
                "`task.chat_template` to a template that does, such as qwen3",
                reason="not_shown",
            )
        return self.form.written(turn)


_FORMS: Final = (
    CallForm({}, is_text=False),
    CallForm({"content": ""}, is_text=False),
    CallForm({"content": ""}, is_text=True),
    CallForm({"content": None}, is_text=True),
    CallForm({"content": None}, is_text=False),
)
_ASKED: Final = {"role": "user", "content": "a"}
_TOOL: Final = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {
            "type": "object",
            "properties": {"number": {"type": "string", "description": "A number."}},
            "required": ["number"],
        },
    },
}
_RESULT: Final = {"role": "tool", "content": "b", "name": "add", "tool_call_id": "call00000"}
_ANSWER: Final = {"role": "assistant", "content": "c"}


def _turn(values: Collection[str]) -> dict[str, Any]:
    calls = [
        {
            "id": f"call{number:05}",  # Mistral's have nine characters
            "type": "function",
            "function": {"name": "add", "arguments": {"number": value}},
        }
        for number, value in enumerate(values)
    ]
    return {"role": "assistant", "tool_calls": calls}


def _with_text(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = json.dumps(function["arguments"], ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}
