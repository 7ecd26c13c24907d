"""Conversations and tokenizers for tests of chat templates."""

from typing import Any

from service.contract.tasks.chat import ChatSpec
from worker.tasks.chat.conversation import Conversation
from worker.tasks.chat.rendering import Rendered
from worker.tasks.chat.rows import RowCleaner, load


def turn(role: str, content: str, **rest: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **rest}


def conversation(*messages: dict[str, Any], **columns: Any) -> Conversation:
    row = RowCleaner("train", ChatSpec())({"messages": list(messages), **columns})
    return load(row)


def trained_texts(tokenizer: Any, rendered: Rendered) -> list[str]:
    """The text of each run of trained tokens."""
    runs: list[list[int]] = []
    before = False
    for token, trained in zip(rendered.input_ids, rendered.trained, strict=True):
        if trained and not before:
            runs.append([])
        if trained:
            runs[-1].append(token)
        before = trained
    return [tokenizer.decode(run) for run in runs]
