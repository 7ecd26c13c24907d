"""Rendering conversations with the sandboxed Jinja of transformers.

A template is untrusted: it comes with the model, or in the spec. The sandbox keeps it away from
files and from Python's internals, and has no range of more than 100,000 numbers. The length of what
it writes, its time and its memory are limited here.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import jinja2
from transformers.utils.chat_template_utils import _compile_jinja_template

from service.contract.failures import FailureCode
from worker.data.table import JobEndingRowError, RowError
from worker.failures import invalid_option
from worker.processes.memory_limit import added_memory
from worker.tasks.chat.conversation import Conversation, Message
from worker.tasks.chat.templates import OPTION
from worker.time_budget import time_budget

ANSWER: Final = "q7x9"
Spans = list[tuple[int, int]]

_PROBE: Final = Conversation(
    ({"role": "user", "content": "a"}, {"role": "assistant", "content": ANSWER}), None, 1
)
_FREE: Final = 1_000_000
_TIMES: Final = 20
"""A text may have `_FREE` characters, and this many for each one of the row, up to `_MOST`."""
_MOST: Final = 64 * 1024**2
_SECONDS: Final = 10.0
"""Of computing, for one text; that of a row of 64 MiB takes less than one."""
_MEMORY: Final = 2 * 1024**3
_MARKS: Final = re.compile(r"\{%-?\s*generation\s*-?%\}")
_SHOWN: Final = 200


class _TooSlow(BaseException):
    """Not an Exception: Jinja catches some of those and continues."""


@dataclass(frozen=True)
class Template:
    text: str
    variables: Mapping[str, Any]
    """The tokenizer's special tokens by name, such as `bos_token`."""

    def with_variables(self, more: Mapping[str, Any]) -> "Template":
        """Raises RowError if a variable would replace a part of the conversation."""
        taken = sorted({"messages", "tools", "documents", "add_generation_prompt"} & more.keys())
        if taken:
            raise RowError(f"the chat template's `{taken[0]}` is not an option of its own")
        return replace(self, variables={**self.variables, **more})

    @property
    def marks_answers(self) -> bool:
        """Whether it has `{% generation %}`, which marks what the assistant writes."""
        return _MARKS.search(self.text) is not None

    def probe(self) -> str:
        """The text of a short conversation whose last turn is ANSWER.

        Empty if the template refuses it; it may accept others. Raises StageError(invalid_option)
        for a template that takes too much time or memory, or has a syntax error.
        """
        try:
            return self._render(_PROBE.messages, _PROBE, opens=False)[0]
        except jinja2.TemplateSyntaxError as error:
            message = f"is not a valid Jinja template: line {error.lineno}: {error.message}"
            raise invalid_option(OPTION, message, line=error.lineno) from error
        except (_TooSlow, MemoryError) as error:
            message = f"{_took(error)} to write two short turns: correct its loops"
            raise invalid_option(OPTION, message) from error
        except Exception:
            return ""  # each row that it refuses gets its own error

    def render(
        self, messages: Sequence[Message], row: Conversation, *, opens: bool = False
    ) -> tuple[str, Spans]:
        """The text, and the spans of it in characters that the template marks.

        `messages`: those of the row, or some of them, as the template gets them. `opens`: with the
        beginning of the assistant's next turn. Raises RowError if the template refuses the
        conversation or writes too much, and JobEndingRowError if it takes too much time or memory.
        """
        try:
            return self._render(messages, row, opens=opens)
        except RowError:
            raise
        except (_TooSlow, MemoryError) as error:
            raise JobEndingRowError(
                f"the chat template {_took(error)} to write this conversation: correct its loops, "
                f"or use another one (`{OPTION}`)",
                FailureCode.INVALID_OPTION,
                reason="template_refuses",
            ) from error
        except Exception as error:
            words = (str(error) or type(error).__name__)[:_SHOWN]
            message = f"the chat template refuses the conversation: {words}"
            raise RowError(message, reason="template_refuses") from error

    def _render(
        self, messages: Sequence[Message], row: Conversation, *, opens: bool
    ) -> tuple[str, Spans]:
        """As transformers does it, but in steps, so that it can be ended. Raises any error."""
        most = min(_FREE + _TIMES * row.characters, _MOST)
        pieces: list[str] = []
        spans: Spans = []
        length = 0
        found: Spans = []
        with time_budget(_SECONDS, _TooSlow), added_memory(_MEMORY):
            template = _compile_jinja_template(self.text)
            # For each mark transformers joins all earlier pieces, to know where it is. Without any
            # in its list, marks are relative to the current piece.
            with template.environment.activate_tracker([], found):
                for piece in template.generate(
                    messages=list(messages),
                    tools=row.tools,
                    documents=None,
                    add_generation_prompt=opens,
                    **self.variables,
                ):
                    spans += _taken(found, length)
                    pieces.append(piece)
                    length += len(piece)
                    if length > most:
                        raise _too_long(most, row)
                spans += _taken(found, length)
        return "".join(pieces), spans


def _took(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return f"takes more than {_MEMORY // 1024**3} GiB of memory"
    return f"takes more than {_SECONDS:.0f} s of computing"


def _taken(found: Spans, length: int) -> Spans:
    """Empties `found`, and places what was in it after the first `length` characters."""
    spans = [(length + start, length + end) for start, end in found]
    found.clear()
    return spans


def _too_long(most: int, row: Conversation) -> RowError:
    return RowError(
        f"the chat template writes more than {most:,} characters for this row of "
        f"{row.characters:,}: correct its loops, or use another one (`{OPTION}`)",
        reason="too_long",
    )
