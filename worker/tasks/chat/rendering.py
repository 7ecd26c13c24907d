"""Conversations as a model's chat template writes them: tokens, and which of them are trained.

Where the template marks what the assistant writes (`{% generation %}`), the marks are the masks, as
for `return_assistant_tokens_mask` of transformers. Else each of the assistant's turns is found by
rendering the conversation up to it. Two gates refuse a row rather than train something else: what
is rendered up to a turn must begin the whole, and the token that ends a turn must be trained.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from service.contract.chat import ChatSpec
from worker.data.table import RowError
from worker.tasks.chat import templates
from worker.tasks.chat.conversation import Conversation, Message
from worker.tasks.chat.jinja import Spans, Template
from worker.tasks.chat.tokens import Tokenized, turn_ends

__all__ = ["Conversation", "Message", "Rendered", "Renderer"]

_MOST_PREFIXES: Final = 1000
_REMEDY: Final = (
    "use a template that marks the assistant's turns with {% generation %}, such as one of ours "
    "(`task.chat_template`)"
)


@dataclass(frozen=True)
class Rendered:
    input_ids: list[int]
    trained: list[bool]
    """For each token whether the model learns to write it."""


class Renderer:
    """Renders conversations with one tokenizer and one template."""

    def __init__(self, tokenizer: Any, parameters: ChatSpec) -> None:
        """StageError(invalid_option) without a usable template."""
        texts = templates.chosen(tokenizer, parameters.chat_template)
        self._tokenizer = tokenizer
        self._templates = {
            with_tools: Template(text, dict(tokenizer.special_tokens_map))
            for with_tools, text in texts.items()
        }
        for template in self._templates.values():
            template.require_valid(templates.OPTION)
        self._train_on = parameters.train_on
        self._ends = turn_ends(tokenizer)

    def render(self, conversation: Conversation) -> Rendered:
        """The whole conversation, not cut. RowError if the template or a gate refuses it."""
        template = self._template(conversation)
        messages = _for_template(conversation.messages, template)
        text, marks = template.render(messages, conversation.tools)
        tokens = Tokenized(self._tokenizer, text)
        whole = _Whole(template, messages, conversation, text, marks)
        rest, places = self._train_on == "all", _TURNS[self._train_on](conversation)
        trained = [rest] * len(tokens.ids)
        for place, span in zip(places, whole.spans(places), strict=True):
            found = self._tokens_of(tokens, span, place, template)
            trained[found.start : found.stop] = [not rest] * len(found)
        return Rendered(tokens.ids, trained)

    def prompt(self, conversation: Conversation) -> list[int]:
        """What comes before the last answer, with the opening of the assistant's turn."""
        template = self._template(conversation)
        messages = _for_template(conversation.messages[: conversation.answer], template)
        text, _ = template.render(messages, conversation.tools, opens=True)
        return Tokenized(self._tokenizer, text).ids

    def _template(self, conversation: Conversation) -> Template:
        return self._templates[bool(conversation.tools)]

    def _tokens_of(
        self, tokens: Tokenized, span: tuple[int, int], place: int, template: Template
    ) -> range:
        """The tokens of a turn with the one that ends it; what a template without marks writes
        after that is not the assistant's."""
        found = tokens.span(*span)
        end = tokens.last_of(found, self._ends)
        if end is None:
            raise RowError(
                f"messages[{place}]: the token that ends the assistant's turn would not be "
                f"trained, so that the model would not learn to stop: {_REMEDY}, whose end of a "
                "turn is a special token of this tokenizer",
                reason="no_end_of_turn",
            )
        return found if template.marks_answers else range(found.start, end + 1)


@dataclass(frozen=True)
class _Whole:
    """The whole conversation as text, in which turns are found."""

    template: Template
    messages: Sequence[Message]
    conversation: Conversation
    text: str
    marks: Spans

    def spans(self, places: Sequence[int]) -> Spans:
        """The characters of each of these turns of the assistant."""
        if not self.template.marks_answers:
            self._require_few(places)
            return [self._by_prefixes(place) for place in places]
        answers, marks = _answers(self.conversation), self.marks
        if len(marks) > len(answers):
            marks = _joined(marks)
        if len(marks) != len(answers):
            raise RowError(
                f"the chat template marks {len(marks)} passages with {{% generation %}} for "
                f"{len(answers)} turns of the assistant; each turn needs one",
                reason="unmarked_turn",
            )
        marked = dict(zip(answers, marks, strict=True))
        return [marked[place] for place in places]

    def _by_prefixes(self, place: int) -> tuple[int, int]:
        """From the opening of the turn on, as far as the whole agrees with what ends with it."""
        tools = self.conversation.tools
        opening, _ = self.template.render(self.messages[:place], tools, opens=True)
        ending, _ = self.template.render(self.messages[: place + 1], tools)
        agreed = _agreed(ending, self.text)
        if not self.text.startswith(opening) or agreed <= len(opening):
            raise RowError(
                f"messages[{place}]: the chat template writes the conversation up to this turn "
                f"otherwise than the same turns within the whole: {_REMEDY}",
                reason="not_a_prefix",
            )
        return len(opening), agreed

    @staticmethod
    def _require_few(places: Sequence[int]) -> None:
        if len(places) > _MOST_PREFIXES:
            raise RowError(
                f"has {len(places):,} turns of the assistant, more than {_MOST_PREFIXES:,}: "
                f"{_REMEDY}",
                reason="too_many_turns",
            )


def _joined(marks: Spans) -> Spans:
    """Passages without anything between them are one: Phi-3's template marks the last turn, and the
    end of the text once more."""
    found = list(marks[:1])
    for start, end in marks[1:]:
        if start == found[-1][1]:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found


def _agreed(one: str, other: str) -> int:
    """The length of the longest common prefix."""
    longest = min(len(one), len(other))
    return bisect_left(range(longest), 1, key=lambda last: one[: last + 1] != other[: last + 1])


def _for_template(messages: Sequence[Message], template: Template) -> list[Message]:
    """The messages without `weight`; a template that does not know developers reads `system`."""
    known = "developer" in template.text
    shown: list[Message] = []
    for message in messages:
        turn = {key: value for key, value in message.items() if key != "weight"}
        if turn["role"] == "developer" and not known:
            turn["role"] = "system"
        shown.append(turn)
    return shown


def _answers(conversation: Conversation) -> list[int]:
    return [n for n, turn in enumerate(conversation.messages) if turn["role"] == "assistant"]


def _weighted(conversation: Conversation) -> list[int]:
    messages = conversation.messages
    return [place for place in _answers(conversation) if messages[place].get("weight", 1)]


def _completion(conversation: Conversation) -> list[int]:
    return [place for place in _weighted(conversation) if place >= conversation.prompt]


def _left_out(conversation: Conversation) -> list[int]:
    messages = conversation.messages
    return [place for place in _answers(conversation) if not messages[place].get("weight", 1)]


_TURNS: Final[dict[str, Callable[[Conversation], list[int]]]] = {
    "assistant": _weighted,
    "last": lambda conversation: _weighted(conversation)[-1:],
    "completion": _completion,
    "all": _left_out,
}
"""`train_on` → the turns of the assistant that are trained; for `all`, those that are not."""
