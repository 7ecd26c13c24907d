"""Predictions of a chat model: how it answers each row."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from service.contract.spec.spec import JobSpec
from service.contract.tasks.chat import ChatSpec, GenerateSpec
from worker.data.table import RowError
from worker.failures import invalid_option
from worker.tasks.base import PrepareContext, PreparedSplit, parameters_of
from worker.tasks.chat import answers, rows, templates
from worker.tasks.chat.chat import Chat
from worker.tasks.chat.rendering import Renderer
from worker.tasks.common import sequence_features
from worker.tasks.common.generation import GenerationObjective, Generator
from worker.tasks.common.list_columns import ListColumns
from worker.training.objective import Objective

_FORMAT_VERSION: Final = 1  # of the features; a new version prepares data again


class ChatGeneration(Chat):
    """Conversations with `mode: predict`."""

    length_option = "generate"

    def max_length(self, parameters: ChatSpec, limit: int | None) -> int:
        """The longest prompt: the model's limit minus the tokens to generate."""
        limit = limit or answers.DEFAULT_LIMIT
        length = limit - generate_of(parameters, limit).max_new_tokens
        if length < 1:
            raise invalid_option(
                "task.generate.max_new_tokens",
                f"leaves no room for a prompt: the model's limit is {limit} tokens",
                limit=limit,
            )
        return length

    def tokenization_settings(self, parameters: ChatSpec) -> Mapping[str, Any]:
        return {
            "prompts": _FORMAT_VERSION,
            "chat_template": templates.setting(parameters.chat_template),
        }

    def row_tokenizer(
        self,
        spec: JobSpec,
        tokenizer: Any,
        max_length: int,
        split: str,  # noqa: ARG002 - only the test split is predicted
    ) -> Callable[[dict[str, Any]], dict[str, Any]]:
        renderer = Renderer(tokenizer, parameters_of(spec, ChatSpec))

        def tokenized(row: dict[str, Any]) -> dict[str, Any]:
            ids = np.array(renderer.prompt(rows.load(row)), dtype=np.int32)
            if len(ids) > max_length:
                raise RowError(
                    f"the prompt has {len(ids):,} tokens, but only {max_length:,} leave room for "
                    "the answer: shorten the row, or lower `task.generate.max_new_tokens`",
                    reason="too_long",
                )
            return {**row, "input_ids": ids, "trained": np.zeros(len(ids), dtype=np.int8)}

        return tokenized

    def prepare(self, split: str, examples: Any, context: PrepareContext, target: Path) -> int:  # noqa: ARG002
        template = getattr(context.spec.task, "chat_template", None)
        templates.infer(context.tokenizer, template, context.inferences)
        columns = ListColumns(examples, ["input_ids"])
        context.measures.tokens.add(columns.lengths)
        return sequence_features.write_each(columns, context.max_length, context, target)

    def bind(
        self, spec: JobSpec, tokenizer: Any, model: Any, splits: Mapping[str, PreparedSplit]
    ) -> Objective:
        parameters = parameters_of(spec, ChatSpec)
        answers.set_up(model, tokenizer, parameters)
        limit = getattr(model.config, "max_position_embeddings", None)
        generate = generate_of(parameters, limit)
        config = answers.generation_config(model, tokenizer, generate)
        return GenerationObjective(splits, Generator(tokenizer, config), _questions)


def generate_of(parameters: ChatSpec, limit: int | None) -> GenerateSpec:
    """The job's options; the default number of new tokens is at most half of the model's limit."""
    generate = parameters.generate or GenerateSpec()
    if "max_new_tokens" in generate.model_fields_set:
        return generate
    most = min(generate.max_new_tokens, (limit or answers.DEFAULT_LIMIT) // 2)
    return generate.model_copy(update={"max_new_tokens": most})


def _questions(examples: Any) -> list[str]:
    return [answers.last_question(rows.load(each)) for each in rows.without_tokens(examples)]
