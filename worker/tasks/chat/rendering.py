"""Conversations as a model's chat template writes them: tokens, and which of them are trained."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.contract.chat import ChatSpec

Message = Mapping[str, Any]


@dataclass(frozen=True)
class Conversation:
    """One cleaned row, as `rows.RowCleaner` writes it and `rows.load` reads it."""

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] | None
    prompt: int
    """How many of the messages are the prompt; the rest is the completion."""


@dataclass(frozen=True)
class Rendered:
    input_ids: list[int]
    trained: list[bool]
    """For each token whether the model learns to write it."""


class Renderer:
    """Renders conversations with one tokenizer and one template."""

    def __init__(self, tokenizer: Any, parameters: ChatSpec) -> None:
        """StageError(invalid_option) without a usable template."""
        raise NotImplementedError

    def render(self, conversation: Conversation) -> Rendered:
        """The whole conversation, not cut. RowError if the template or a gate refuses it."""
        raise NotImplementedError

    def prompt(self, conversation: Conversation) -> list[int]:
        """What comes before the last answer, with the opening of the assistant's turn."""
        raise NotImplementedError
