"""A few rows of an evaluation with their texts, for a person."""

from collections.abc import Sequence
from typing import Any, Final

from worker.tasks.chat.answers import last_question, own_answer
from worker.tasks.chat.conversation import Conversation
from worker.tasks.common.predictions import SAMPLES, spread
from worker.tasks.preference import rows

_SHOWN: Final = 300
"""Characters of a text."""


def of_rows(found: Sequence[dict[str, Any]], examples: Any) -> list[dict[str, Any]]:
    """Evenly spread over the split: the end of the prompt, the answers, and what was found."""
    return [
        {**_texts(rows.load(examples[number])), **found[number]}
        for number in spread(len(found), SAMPLES)
    ]


def of_answers(found: Sequence[dict[str, Any]], examples: Any) -> list[dict[str, Any]]:
    """The same for single answers, each with its `row`, from 1, and its `label`."""
    chosen = [found[number] for number in spread(len(found), SAMPLES)]
    talks = [rows.load(examples[each["row"] - 1]) for each in chosen]
    # In a pair the good one comes first.
    return [
        {**_texts([own[0 if each["label"] else -1]]), **each}
        for own, each in zip(talks, chosen, strict=True)
    ]


def _texts(talks: Sequence[Conversation]) -> dict[str, str]:
    names = ("chosen", "rejected") if len(talks) == 2 else ("completion",)
    texts = dict(zip(names, map(own_answer, talks), strict=True))
    texts = {"prompt": last_question(talks[0]), **texts}
    return {name: text[:_SHOWN] for name, text in texts.items()}
