"""A cleaned conversation."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

Message = Mapping[str, Any]


@dataclass(frozen=True)
class Conversation:
    """One cleaned row, as `rows.RowCleaner` writes it and `rows.load` reads it."""

    messages: Sequence[Message]
    """Keys: `role`, and if given `content`, `name`, `tool_calls`, `tool_call_id`,
    `reasoning_content`, and `weight` with the value 0."""
    tools: Sequence[Mapping[str, Any]] | None
    prompt: int
    """How many of the messages are the prompt; the rest is the completion."""

    @property
    def answer(self) -> int:
        """The place of the last answer, or the number of messages if one is awaited."""
        last = len(self.messages) - 1
        ends = bool(self.messages) and self.messages[last]["role"] == "assistant"
        return last if ends else last + 1

    @cached_property
    def characters(self) -> int:
        """The length of its JSON text."""
        return len(json.dumps([self.messages, self.tools], ensure_ascii=False))
