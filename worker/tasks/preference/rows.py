"""Cleans rows of preferences, in any of the forms that are in use, into one form.

Pure Python, as all cleaners: see `worker.tasks.row_checks`.
"""

import json
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final

from service.contract.failures import FailureCode
from service.contract.spec.splits import TEST
from worker.data.table import Row, RowError
from worker.tasks.chat import rows as chat_rows
from worker.tasks.chat.conversation import Conversation
from worker.tasks.chat.problems import Problems
from worker.tasks.chat.turns import Turn, require_answers
from worker.tasks.common.cells import kind_of

TURNS: Final = "turns"
TEXT: Final = "text"
"""Prompt and answers are texts: one turn each, or joined as they are for a model without a chat
template."""
TRANSCRIPT: Final = "transcript"
"""Texts that begin with their prompt: always joined as they are."""

_SINGLE: Final = ("completion", "label")
_FORMS: Final = {
    "`chosen` and `rejected`": ("chosen", "rejected"),
    "`preferred_output` and `non_preferred_output`": ("preferred_output", "non_preferred_output"),
    "`completion` and `label`": _SINGLE,
}
_SCORED: Final = ("messages", "chosen", "completion", "preferred_output")
_NO_PROMPT: Final = {
    0: "the row has no prompt",
    1: "the row has no prompt, and nothing comes before its answer",
    2: "the row has no prompt, and its answers have no common beginning",
}
"""By the number of answers."""
_MOST_MARGIN: Final = 1e30
"""It is a float32."""
_TRUTHS: Final = {"true": True, "false": False}


def example_schema() -> dict[str, Any]:
    """The columns of a cleaned row: for each answer the whole conversation as JSON text, and
    whether the answer is good."""
    from datasets import List, Value

    return {
        "messages": List(Value("large_string")),
        "tools": Value("string"),
        "prompt": Value("int32"),
        "labels": List(Value("bool")),
        "form": Value("string"),
    }


def load(example: Mapping[str, Any]) -> list[Conversation]:
    """The conversations of a cleaned row, one for each answer."""
    tools = json.loads(example["tools"]) if example["tools"] else None
    return [Conversation(json.loads(t), tools, example["prompt"]) for t in example["messages"]]


class RowCleaner:
    """A row of one of the forms → the columns of `example_schema`. Reports all problems at once.

    Rows of the test split may have a prompt alone.
    """

    def __init__(self, split: str, parameters: Any) -> None:
        self._takes_single = getattr(parameters, "loss_type", None) == "kto"
        self._may_wait = split == TEST
        self.counts: Counter[str] = Counter()
        """`repeated_prompt`: rows whose answers begin with their own prompt."""

    def __call__(self, row: Row) -> dict[str, Any]:
        given = {column: value for column, value in row.items() if value is not None}
        problems = Problems()
        answers = self._answers(given)
        prompt, tools = _prompt_and_tools(given, problems)
        texts = [value for value in (prompt, *answers.values()) if value is not None]
        form = TEXT if all(isinstance(value, str) for value in texts) else TURNS
        if prompt is None and form is TEXT:
            form, prompt = TRANSCRIPT, _common_text(list(answers.values()))
            answers = {name: text[len(prompt) :] for name, text in answers.items()}
        replies = {
            name: chat_rows.side(value, name, "assistant", problems)
            for name, value in answers.items()
        }
        if prompt is None:
            asked = _common_turns(list(replies.values()))
            replies = {name: turns[len(asked) :] for name, turns in replies.items()}
        else:
            asked = chat_rows.side(prompt, "prompt", "user", problems) if prompt else []
        _require_choice(asked, replies, problems)
        cleaned = [
            chat_rows.cleaned(asked + turns, len(asked), tools, problems)
            for turns in list(replies.values()) or [[]]
        ]
        if prompt and answers and form != TRANSCRIPT:
            self.counts["repeated_prompt"] += _repeat(prompt, asked, answers, replies)
        return {
            "messages": [each["messages"] for each in cleaned],
            "tools": cleaned[0]["tools"],
            "prompt": len(asked),
            "labels": self._labels(given, answers),
            "form": form,
        }

    def _answers(self, given: Row) -> dict[str, Any]:
        """The columns of the row's form with the answers in them, the better one first; none of a
        row that waits for one. Raises RowError without a form, or with two."""
        found = [columns for columns in _FORMS.values() if set(columns) <= given.keys()]
        if len(found) > 1:
            names = " and ".join(", ".join(map("`{}`".format, columns)) for columns in found)
            raise RowError(f"the row has both {names}: give one form", reason="two_forms")
        if not found and self._may_wait:
            return self._of_test_row(given)
        if not found:
            known = [name for name, form in _FORMS.items() if self._takes_single or form != _SINGLE]
            raise RowError(
                f"the row has no {', no '.join(known)}: give one of these forms, or name your "
                "columns in `dataset.columns`",
                FailureCode.MISSING_COLUMN,
                reason="missing_value",
            )
        if found[0] is _SINGLE and not self._takes_single:
            raise RowError(
                "the row has one answer, and only `preference` with `loss_type: kto` learns from "
                "single answers: give `chosen` and `rejected`",
                reason="not_a_pair",
            )
        return {name: given[name] for name in found[0] if name != "label"}

    def _of_test_row(self, given: Row) -> dict[str, Any]:
        """None: a prompt that waits for an answer. Raises RowError without one."""
        if {"prompt", "input"}.isdisjoint(given):
            raise RowError("the row has no `prompt`", reason="missing_value")
        return {}

    @staticmethod
    def _labels(given: Row, answers: Collection[str]) -> list[bool]:
        if "completion" in answers and "label" in given:
            return [_truth(given["label"])]
        return [True, False][: len(answers)]


class RewardRowCleaner(RowCleaner):
    """As above, with the `margin` of a pair, a number or None: either all rows have one, or none.

    Rows of the test split may have one answer, which is scored.
    """

    def __init__(self, split: str, parameters: Any) -> None:
        super().__init__(split, parameters)
        self._has_margins: bool | None = None
        """The first pair decides."""

    def __call__(self, row: Row) -> dict[str, Any]:
        cleaned = super().__call__(row)
        is_pair = len(cleaned["labels"]) == 2
        return {**cleaned, "margin": self._margin(row.get("margin")) if is_pair else None}

    def _margin(self, value: Any) -> float | None:
        margin = _margin(value)
        if self._has_margins is None:
            self._has_margins = margin is not None
        if self._has_margins and margin is None:
            raise RowError("has no `margin`, but earlier rows have one", reason="missing_value")
        if margin is not None and not self._has_margins:
            problem = "`margin` is present, but earlier rows have none"
            raise RowError(problem, reason="invalid_margin")
        return margin

    def _of_test_row(self, given: Row) -> dict[str, Any]:
        name = next((name for name in _SCORED if name in given), None)
        if name is None:
            message = f"the row has none of {', '.join(map('`{}`'.format, _SCORED))} to score"
            raise RowError(message, reason="missing_value")
        return {name: given[name]}


def _prompt_and_tools(given: Row, problems: Problems) -> tuple[Any, Any]:
    """OpenAI's rows have both in `input`. The prompt is None where the answers begin with it."""
    if "prompt" in given or "input" not in given:
        return given.get("prompt"), given.get("tools")
    asked = given["input"]
    if not isinstance(asked, Mapping) or asked.get("messages") is None:
        problems.add(f"`input` must be {{messages: […]}}, not {kind_of(asked)}", "invalid_value")
        return [], None
    return asked["messages"], asked.get("tools")


def _repeat(
    prompt: Any,
    asked: Sequence[Turn],
    answers: Mapping[str, Any],
    replies: Mapping[str, Sequence[Turn]],
) -> bool:
    """Whether every answer begins with the prompt that the row also has by itself."""
    begin = prompt.strip() if isinstance(prompt, str) else None
    return all(
        answer.lstrip().startswith(begin)
        if begin and isinstance(answer, str)
        else replies[name][: len(asked)] == asked
        for name, answer in answers.items()
    )


def _common_text(texts: Sequence[str]) -> str:
    """What all texts begin with, up to the last space in it."""
    same = takewhile(lambda letters: len(set(letters)) == 1, zip(*texts, strict=False))
    common = sum(1 for _ in same) if len(set(texts)) > 1 else 0
    return texts[0][: texts[0].rfind(" ", 0, common) + 1]


def _common_turns(conversations: Sequence[Sequence[Turn]]) -> list[Turn]:
    """The turns that all conversations begin with; a single one ends with its answer."""
    if len(conversations) == 1:
        return list(conversations[0][:-1])
    same = takewhile(lambda turns: turns[0] == turns[1], zip(*conversations, strict=False))
    return [turns[0] for turns in same]


def _require_choice(
    asked: Sequence[Turn], replies: Mapping[str, Sequence[Turn]], problems: Problems
) -> None:
    """Reports answers that teach nothing, and a missing prompt."""
    if len(replies) == 2 and len({str(turns) for turns in replies.values()}) == 1:
        problems.add(f"{' and '.join(map('`{}`'.format, replies))} are equal", "equal_answers")
        return
    if not asked and not problems.found:
        problems.add(_NO_PROMPT[len(replies)], "no_prompt")
    for name, turns in replies.items():
        require_answers(turns, name, problems)


def _margin(value: Any) -> float | None:
    """Of a cell; None for an empty one."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    try:
        margin = float(value) if isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        margin = math.nan
    if isinstance(value, bool) or not abs(margin) < _MOST_MARGIN:
        problem = f"`margin` must be a number between -1e30 and 1e30, not {value!r:.80}"
        raise RowError(problem, reason="invalid_margin")
    return margin


def _truth(label: Any) -> bool:
    if isinstance(label, str):
        label = _TRUTHS.get(label.strip().lower())
    if label not in (0, 1):
        raise RowError("`label` must be true or false", reason="invalid_label")
    return bool(label)
