"""Cleaned rows of preferences → the tokens of each prompt with its answer."""

from collections.abc import Collection, Sequence
from itertools import takewhile
from typing import Any, Final

from service.contract.stage.events import Notice
from service.contract.tasks.chat import ChatSpec
from service.contract.tasks.preference import PreferenceSpec, RewardSpec
from worker.data.table import RowError
from worker.tasks.chat.conversation import Conversation
from worker.tasks.chat.rendering import Renderer
from worker.tasks.preference import rows

_REWRITTEN: Final = 8
"""Tokens at the end of a prompt that may differ when an answer follows: some merge with it."""


class RowTokenizer:
    """Adds `input_ids`, the tokens of each answer with its prompt, and `start` of the answers.

    As in TRL an answer is all that follows the longest beginning which the prompt's own tokens and
    the whole's have in common.
    """

    def __init__(
        self, tokenizer: Any, parameters: PreferenceSpec | RewardSpec, max_length: int
    ) -> None:
        """StageError(invalid_option) for a template that cannot be used."""
        self._tokenizer = tokenizer
        self._parameters = parameters
        self._length = max_length
        self._renderer: Renderer | None = None
        if has_template(tokenizer, parameters.chat_template):
            self._renderer = self._chat_renderer()

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        joins = row["form"] == rows.TRANSCRIPT or (
            row["form"] == rows.TEXT and self._renderer is None
        )
        tokens_of = self._joined if joins else self._rendered
        if not row["labels"]:
            raise RowError(
                "the row has no answers to compare: only `mode: predict` takes a prompt alone",
                reason="missing_value",
            )
        found = [tokens_of(each) for each in rows.load(row)]
        start = min(start for _, start in found)
        if any(len(ids) <= start for ids, _ in found):
            raise RowError("an answer has no token after its prompt", reason="empty_answer")
        if start == 0:
            raise RowError("the prompt has no token before the answer", reason="no_prompt")
        if start >= self._length:
            raise RowError(
                f"the prompt alone has {start:,} tokens, and `task.max_length` is "
                f"{self._length:,}: no token of an answer would be left",
                reason="nothing_to_train",
            )
        return {**row, "input_ids": [ids for ids, _ in found], "start": start}

    def _rendered(self, conversation: Conversation) -> tuple[list[int], int]:
        """The tokens that the chat template writes, and where the answer starts."""
        if self._renderer is None:
            self._renderer = self._chat_renderer()
        asked = Conversation(
            conversation.messages[: conversation.prompt], conversation.tools, conversation.prompt
        )
        prompt = self._renderer.prompt(asked)
        whole = self._renderer.render(conversation).input_ids
        start = _shared(prompt, whole)
        if start < len(prompt) - _REWRITTEN:
            raise RowError(
                "the chat template writes the prompt alone otherwise than with an answer",
                reason="not_a_prefix",
            )
        return whole, start

    def _joined(self, conversation: Conversation) -> tuple[list[int], int]:
        """Prompt and answer as they are, with one end-of-text token after them."""
        prompt, answer = (str(each["content"]) for each in conversation.messages)
        end = self._tokenizer.eos_token or ""
        text = prompt + answer + ("" if answer.endswith(end) else end)
        whole = self._encoded(text)
        if whole[-2:] == [self._tokenizer.eos_token_id] * 2:  # the tokenizer adds one, too
            whole = whole[:-1]
        return whole, _shared(self._encoded(prompt), whole)

    def _encoded(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, return_attention_mask=False, verbose=False)[
            "input_ids"
        ]
        return ids

    def _chat_renderer(self) -> Renderer:
        chat = ChatSpec(train_on="completion", chat_template=self._parameters.chat_template)
        return Renderer(self._tokenizer, chat)


def joined_notice(
    tokenizer: Any, chat_template: str | None, forms: Collection[str]
) -> Notice | None:
    """A notice if rows of these forms are not written by the chat template."""
    if rows.TRANSCRIPT in forms:
        why = "the rows have no `prompt` of their own"
    elif rows.TEXT in forms and not has_template(tokenizer, chat_template):
        why = "the model has no chat template (`task.chat_template` names one)"
    else:
        return None
    end = tokenizer.eos_token
    after = f", with {end!r} after them" if end else ""
    message = f"Prompts and answers that are text are joined as they are{after}: {why}"
    return Notice(message=message, data={"eos_token": end, "forms": sorted(forms)})


def has_template(tokenizer: Any, chat_template: str | None) -> bool:
    """`chat_template`: the task's option."""
    return bool(chat_template or tokenizer.chat_template)


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
