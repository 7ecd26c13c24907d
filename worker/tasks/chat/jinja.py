"""Rendering conversations with the sandboxed Jinja of transformers."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import jinja2
from transformers.utils.chat_template_utils import render_jinja_template

from worker.data.table import RowError
from worker.failures import invalid_option
from worker.tasks.chat.conversation import Message

MOST_CHARACTERS: Final = 64 * 1024**2
_MARKS: Final = re.compile(r"\{%-?\s*generation\s*-?%\}")
_SHOWN: Final = 200
ANSWER: Final = "q7x9"
_PROBE: Final = ({"role": "user", "content": "a"}, {"role": "assistant", "content": ANSWER})
Spans = list[tuple[int, int]]


@dataclass(frozen=True)
class Template:
    text: str
    variables: Mapping[str, str]
    """The tokenizer's special tokens by name, such as `bos_token`."""

    @property
    def marks_answers(self) -> bool:
        """Whether it has `{% generation %}`, which marks what the assistant writes."""
        return _MARKS.search(self.text) is not None

    def probe(self, option: str) -> str:
        """The text of a short conversation whose last turn is ANSWER.

        Empty if the template refuses it; it may accept others. Raises
        StageError(invalid_option) that names the line of a syntax error.
        """
        try:
            return self._render(_PROBE, None, opens=False)[0]
        except jinja2.TemplateSyntaxError as error:
            message = f"is not a valid Jinja template: line {error.lineno}: {error.message}"
            raise invalid_option(option, message, line=error.lineno) from error
        except Exception:
            return ""  # what it refuses is said of each row

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        *,
        opens: bool = False,
    ) -> tuple[str, Spans]:
        """The text, and the spans of it in characters that the template marks.

        `opens`: with the beginning of the assistant's next turn. Raises RowError if the template
        refuses the conversation.
        """
        try:
            text, spans = self._render(messages, tools, opens=opens)
        except MemoryError:
            raise
        except Exception as error:
            words = (str(error) or type(error).__name__)[:_SHOWN]
            message = f"the chat template refuses the conversation: {words}"
            raise RowError(message, reason="template_refuses") from error
        if len(text) > MOST_CHARACTERS:
            message = f"the chat template makes a text of {len(text):,} characters of it"
            raise RowError(message, reason="too_long")
        return text, spans

    def _render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        *,
        opens: bool,
    ) -> tuple[str, Spans]:
        given: dict[str, Any] = {**self.variables, "tools": tools}
        rendered: tuple[list[str], list[Spans]] = render_jinja_template(  # type: ignore[assignment]
            conversations=[[dict(message) for message in messages]],
            chat_template=self.text,
            return_assistant_tokens_mask=self.marks_answers,
            add_generation_prompt=opens,
            **given,
        )
        texts, spans = rendered
        return texts[0], spans[0] if spans else []
