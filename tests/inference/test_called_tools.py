"""Calls of tools in a text: read in the forms that are known, else left as text."""

import pytest

from worker.inference.called_tools import message_of

CALL = {"name": "add", "arguments": '{"number": 1}'}


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ('<tool_call>\n{"name": "add", "arguments": {"number": 1}}\n</tool_call>', None),
        ('Sure. <tool_call>{"name": "add", "arguments": {"number": 1}}</tool_call>', "Sure."),
        ('{"name": "add", "parameters": {"number": 1}}', None),
    ],
)
def test_a_call_is_read(text: str, content: str | None) -> None:
    assert message_of(text, "x", has_tools=True) == {
        "role": "assistant",
        "content": content,
        "tool_calls": [{"id": "call_x_0", "type": "function", "function": CALL}],
    }


@pytest.mark.parametrize(
    "text",
    ["plain", "<tool_call>{broken</tool_call>", "{}", '<tool_call>{"a": }</tool_call>', '{"a": 1'],
)
def test_other_text_stays_text(text: str) -> None:
    assert message_of(text, "x", has_tools=True) == {"role": "assistant", "content": text}


def test_without_tools_nothing_is_a_call() -> None:
    text = '{"name": "add", "parameters": {}}'
    assert message_of(text, "x", has_tools=False) == {"role": "assistant", "content": text}
