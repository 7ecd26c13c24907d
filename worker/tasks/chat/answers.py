"""Answers that evaluations generate: samples by step, and the metric `exact_match`."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from transformers import GenerationConfig

from service.contract.tasks.chat import ChatSpec, GenerateSpec
from worker.failures import invalid_option
from worker.tasks.base import PreparedSplit
from worker.tasks.chat import exact_match, rows, templates
from worker.tasks.chat.conversation import Conversation
from worker.tasks.chat.exact_match import ResultPattern
from worker.tasks.chat.rendering import Renderer
from worker.tasks.common.generation import Generator, end_tokens, fill_token
from worker.tasks.common.list_columns import ListColumns
from worker.tasks.common.predictions import spread
from worker.training.objective import Forward

DEFAULT_LIMIT: Final = 8192
"""The positions of a model that states none."""
_SHOWN: Final = 1000
"""Characters of a text in a sample."""
_GREEDY: Final = {"do_sample": False, "temperature": 1.0, "top_k": 50, "top_p": 1.0}
"""A model's own settings for sampling do not apply unless the job asks to sample."""


def settings(generate: GenerateSpec | None) -> Mapping[str, Any] | None:
    """The options that the prepared data depends on."""
    if generate is None:
        return None
    return {"max_new_tokens": generate.max_new_tokens, "exact_match": generate.exact_match}


def prompt_length(config: Any, generate: GenerateSpec, reserved: int = 0) -> int:
    """Tokens of the longest prompt that leaves room for the answer. StageError(invalid_option)
    without room for any. `reserved`: positions that virtual tokens take."""
    stated = getattr(config, "max_position_embeddings", None) or 0
    limit = (stated if stated > 0 else DEFAULT_LIMIT) - reserved
    if generate.max_new_tokens >= limit:
        raise invalid_option(
            "task.generate.max_new_tokens",
            f"is {generate.max_new_tokens}, which leaves no room for a prompt: the model's limit "
            f"is {limit} tokens",
            limit=limit,
        )
    return limit - generate.max_new_tokens


def set_up(model: Any, tokenizer: Any, parameters: ChatSpec) -> None:
    """Make the finished model and tokenizer write and stop as the job trains them: with its
    template, and at the token that ends a turn."""
    renderer = Renderer(tokenizer, parameters)
    keep_template(tokenizer, parameters.chat_template)
    config = model.generation_config
    ends = sorted({*end_tokens(config), *renderer.ends})
    config.eos_token_id = ends[0] if len(ends) == 1 else ends or None


def keep_template(tokenizer: Any, requested: str | None) -> None:
    """The template of the job is saved with the tokenizer, for those who use the model."""
    if requested is not None:
        tokenizer.chat_template = templates.chosen(tokenizer, requested)[False]


def generation_config(model: Any, tokenizer: Any, generate: GenerateSpec) -> GenerationConfig:
    """The model's generation config with the options of the job; greedy unless it samples."""
    config: GenerationConfig = copy.deepcopy(model.generation_config)
    own = {"samples", "max_samples", "exact_match"}
    given = generate.model_dump(exclude_none=True, exclude=own)
    greedy = {} if generate.do_sample else _GREEDY
    config.update(**{**given, **greedy}, max_length=None)
    config.pad_token_id = fill_token(tokenizer)
    return config


@dataclass(frozen=True)
class Found:
    """The answers of some rows of a split."""

    metrics: dict[str, float]
    rows: dict[int, dict[str, Any]]
    """Number of the row, from 0 → its entry in the predictions."""
    samples: list[dict[str, Any]]


class Answers:
    def __init__(self, model: Any, tokenizer: Any, generate: GenerateSpec) -> None:
        self._generate = generate
        self._generator = Generator(tokenizer, generation_config(model, tokenizer, generate))
        pattern = generate.exact_match
        self._pattern = None if pattern is None else ResultPattern(pattern)

    def generated(self, split: PreparedSplit, forward: Forward) -> Found:
        """Answer rows that have a prompt, spread over the split: those that are scored, or without
        a metric those that are shown."""
        prompts = ListColumns(split.features, ["prompt_ids"])
        able = np.flatnonzero(prompts.lengths).tolist()
        most = self._generate.samples
        if self._pattern is not None:
            most = self._generate.max_samples or len(able)
        chosen = [able[place] for place in spread(len(able), most)]
        asked = [{"input_ids": ids.tolist()} for ids in prompts.rows("prompt_ids", chosen)]
        texts = self._generator.texts(asked, forward) if asked else []
        examples = rows.without_tokens(split.examples)
        talks = [rows.load(examples[number]) for number in chosen]
        found = {
            number: {"prediction": text, **self._result(talk, text)}
            for number, talk, text in zip(chosen, talks, texts, strict=True)
        }
        shown = spread(len(chosen), self._generate.samples)
        samples = [
            {"row": chosen[at] + 1, **_texts(talks[at]), **found[chosen[at]]} for at in shown
        ]
        return Found(self._metrics(list(found.values())), found, samples)

    def _result(self, talk: Conversation, text: str) -> dict[str, Any]:
        if self._pattern is None:
            return {}
        expected = self._pattern.result_or_none(own_answer(talk))
        return {"result": self._pattern.result_or_none(text), "expected": expected}

    def _metrics(self, found: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        asked = [each for each in found if each.get("expected") is not None]
        if not asked:
            return {}
        results = [each["result"] for each in asked]
        return {"exact_match": exact_match.share(results, [each["expected"] for each in asked])}


def own_answer(talk: Conversation) -> str:
    """The text of the row's own last answer; empty without one."""
    return _text(talk, talk.answer)


def last_question(talk: Conversation) -> str:
    """The text of the turn before the last answer."""
    return _text(talk, talk.answer - 1)


def _texts(talk: Conversation) -> dict[str, str]:
    found = {"prompt": last_question(talk), "reference": own_answer(talk)}
    return {name: text[:_SHOWN] for name, text in found.items() if text}


def _text(talk: Conversation, place: int) -> str:
    if not 0 <= place < len(talk.messages):
        return ""
    content = talk.messages[place].get("content")
    return content if isinstance(content, str) else ""
