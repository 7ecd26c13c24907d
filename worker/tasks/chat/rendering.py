"""Conversations as a model's chat template writes them: tokens, and which of them are trained.

Where the template marks what the assistant writes (`{% generation %}`), the marks are the masks, as
for `return_assistant_tokens_mask` of transformers. Else each of the assistant's turns is found by
rendering the conversation up to it. Two gates refuse a row rather than train something else: what
is rendered up to a turn must begin the whole, and the token that ends a turn must be trained.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from service.contract.tasks.chat import ChatSpec
from worker.data.table import RowError
from worker.tasks.chat import templates
from worker.tasks.chat.call_forms import Calls
from worker.tasks.chat.conversation import Conversation, Message
from worker.tasks.chat.jinja import Template
from worker.tasks.chat.tokens import Control, Tokenized
from worker.tasks.chat.turn_spans import REMEDY, Whole, answers_of

_THINKING: Final = ("reasoning", "thinking")


@dataclass(frozen=True)
class Rendered:
    input_ids: list[int]
    trained: list[bool]
    """For each token whether the model learns to write it."""
    without_thinking: int
    """How many turns are trained without their thinking: some templates show only that of the
    turns after the last question."""


class Renderer:
    """Renders conversations with one tokenizer and one template."""

    def __init__(self, tokenizer: Any, parameters: ChatSpec) -> None:
        """StageError(invalid_option) without a usable template."""
        self._tokenizer = tokenizer
        self._train_on = parameters.train_on
        self._forms = {
            with_tools: _Form.from_template(tokenizer, text, with_tools=with_tools)
            for with_tools, text in templates.chosen(tokenizer, parameters.chat_template).items()
        }

    @property
    def ends(self) -> frozenset[int]:
        """The tokens that can end a turn of the assistant: EOS, and what the template writes."""
        return frozenset().union(*(form.control.ends for form in self._forms.values()))

    def render(self, conversation: Conversation) -> Rendered:
        """The whole conversation, not cut. RowError if the template or a gate refuses it."""
        form = self._forms[bool(conversation.tools)]
        messages = form.messages(conversation)
        text, marks = form.template.render(messages, conversation)
        tokens = self._tokens(text)
        control = form.control
        whole = Whole(form.template, messages, conversation, text, marks, control.end_texts)
        rest, places = self._train_on == "all", _turns(self._train_on, conversation)
        trained = [rest] * len(tokens.ids)
        for place, spans in zip(places, whole.spans(places), strict=True):
            found = form.turn(tokens, spans, place)
            trained[found.start : found.stop] = [not rest] * len(found)
        shown = set(answers_of(conversation)).difference(places) if rest else places
        return Rendered(tokens.ids, trained, sum(_loses(messages[n], text) for n in shown))

    def prompt(
        self, conversation: Conversation, variables: Mapping[str, Any] | None = None
    ) -> list[int]:
        """What comes before the last answer, with the opening of the assistant's turn.

        `variables`: more of them for the template, such as `enable_thinking`.
        """
        form = self._forms[bool(conversation.tools)]
        messages = form.messages(conversation)[: conversation.answer]
        template = form.template.with_variables(variables) if variables else form.template
        text, _ = template.render(messages, conversation, opens=True)
        return self._tokens(text).ids

    def _tokens(self, text: str) -> Tokenized:
        tokens = Tokenized(self._tokenizer, text)
        bos = self._tokenizer.bos_token_id
        if bos is not None and tokens.ids[:2] == [bos, bos]:
            raise RowError("the chat template begins with BOS twice", reason="doubled_token")
        return tokens


def _run(places: list[int]) -> int:
    """The end of the first run of adjacent places: Cohere's turns end with two tokens."""
    return next(
        (place + 1 for place, after in pairwise(places) if after > place + 1), places[-1] + 1
    )


@dataclass(frozen=True)
class _Form:
    """A template, and the tokens with which it controls turns."""

    template: Template
    control: Control
    calls: Calls

    @classmethod
    def from_template(cls, tokenizer: Any, text: str, *, with_tools: bool) -> "_Form":
        template = Template(text, dict(tokenizer.special_tokens_map))
        control = Control.from_template(tokenizer, template.probe())
        return cls(template, control, Calls.from_template(template, with_tools=with_tools))

    def messages(self, conversation: Conversation) -> list[Message]:
        """The messages without `weight`; a template that does not know developers reads `system`.

        Raises RowError for what the template would leave out, or read as control tokens.
        """
        self._require_shown(conversation)
        self._require_no_control(conversation)
        known = "developer" in self.template.text
        shown: list[Message] = []
        for place, message in enumerate(conversation.messages):
            turn = {key: value for key, value in message.items() if key != "weight"}
            if turn["role"] == "developer" and not known:
                turn["role"] = "system"
            if "reasoning_content" in turn:  # gpt-oss's name for it, which transformers adds, too
                turn["thinking"] = turn["reasoning_content"]
            shown.append(self.calls.written(turn, place) if "tool_calls" in turn else turn)
        return shown

    def turn(self, tokens: Tokenized, spans: Iterable[tuple[int, int]], place: int) -> range:
        """The tokens of a turn with the one that ends it. What a template without marks writes
        after that is not the assistant's."""
        for span in spans:
            found = tokens.span(*span)
            closing = tokens.trailing(found, self.control.special)
            ends = [n for n in closing if tokens.ids[n] in self.control.ends]
            ends = ends or [n for n in closing if tokens.ids[n] in self.control.special][-1:]
            if ends:
                return found if self.template.marks_answers else range(found.start, _run(ends))
        raise RowError(
            f"messages[{place}]: the token that ends the assistant's turn would not be trained, so "
            f"that the model would not learn to stop: {REMEDY}, whose end of a turn is a special "
            "token of this tokenizer",
            reason="no_end_of_turn",
        )

    def _require_shown(self, conversation: Conversation) -> None:
        text, messages = self.template.text, conversation.messages
        lost = "tools" if conversation.tools and "tools" not in text else None
        if any("tool_calls" in turn for turn in messages) and "tool_calls" not in text:
            lost = "tool_calls"
        thinks = any("reasoning_content" in turn for turn in messages)
        if thinks and not any(word in text for word in _THINKING):
            lost = "reasoning_content"
        if lost is not None:
            raise RowError(
                f"the chat template does not show `{lost}`: remove it from the row, or set "
                "`task.chat_template` to a template that does, such as qwen3",
                reason="not_shown",
            )

    def _require_no_control(self, conversation: Conversation) -> None:
        for name, value in _texts(conversation):
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            found = next((token for token in self.control.reserved if token in text), None)
            if found is not None:
                raise RowError(
                    f"{name} has {found!r}, which the model reads as a token that begins or ends "
                    "turns: remove it; the chat template writes it where it belongs",
                    reason="control_token",
                )


def _loses(turn: Message, text: str) -> bool:
    """Whether the rendered conversation lacks the turn's thinking."""
    written = str(turn.get("content") or "")
    inline = written.split("</think>")[0].split("<think>")[-1] if "</think>" in written else ""
    thinking = str(turn.get("reasoning_content") or inline).strip()
    return thinking not in text


def _texts(conversation: Conversation) -> Iterator[tuple[str, Any]]:
    """What a template may write of the row, with its place."""
    for place, message in enumerate(conversation.messages):
        for key, value in message.items():
            if key not in ("role", "weight"):
                yield f"messages[{place}].{key}", value
    if conversation.tools:
        yield "tools", conversation.tools


def _turns(train_on: str, conversation: Conversation) -> list[int]:
    """The turns of the assistant that are trained; for `all`, those that are not."""
    answers, messages = answers_of(conversation), conversation.messages
    if train_on == "all":
        return [place for place in answers if not messages[place].get("weight", 1)]
    weighted = [place for place in answers if messages[place].get("weight", 1)]
    if train_on == "completion":
        return [place for place in weighted if place >= conversation.prompt]
    return weighted[-1:] if train_on == "last" else weighted
