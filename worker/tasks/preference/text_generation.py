"""`preference` with `mode: predict`: how the model answers the prompt of each row."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from service.contract.spec.spec import JobSpec
from service.contract.tasks.chat import ChatSpec
from service.contract.tasks.preference import PreferenceSpec
from worker.tasks.base import PreparedSplit, parameters_of
from worker.tasks.chat.text_generation import ChatGeneration
from worker.tasks.preference import rows
from worker.training.objective import Objective


class PreferenceGeneration(ChatGeneration):
    """Its rows are cleaned as preferences, and from then on conversations that wait for an
    answer."""

    name = "preference"

    def max_length(self, parameters: Any, limit: int | None) -> int:
        return super().max_length(as_chat(parameters), limit)

    def tokenization_settings(self, parameters: Any) -> Mapping[str, Any]:
        return super().tokenization_settings(as_chat(parameters))

    def row_tokenizer(
        self, spec: JobSpec, tokenizer: Any, max_length: int, split: str
    ) -> Callable[[dict[str, Any]], dict[str, Any]]:
        tokenize = super().row_tokenizer(_of_chat(spec), tokenizer, max_length, split)
        return lambda row: tokenize(_question(row))

    def bind(
        self, spec: JobSpec, tokenizer: Any, model: Any, splits: Mapping[str, PreparedSplit]
    ) -> Objective:
        return super().bind(_of_chat(spec), tokenizer, model, splits)


def as_chat(parameters: PreferenceSpec) -> ChatSpec:
    """What conversations need of the parameters."""
    return ChatSpec(
        chat_template=parameters.chat_template,
        generate=parameters.generate,
        train_on="completion",
    )


def _of_chat(spec: JobSpec) -> JobSpec:
    return spec.model_copy(update={"task": as_chat(parameters_of(spec, PreferenceSpec))})


def _question(row: Mapping[str, Any]) -> dict[str, Any]:
    """The cleaned row of a conversation, without the answers."""
    talk = rows.load(row)[0]
    asked = json.dumps(list(talk.messages[: talk.prompt]), ensure_ascii=False)
    return {"messages": asked, "tools": row["tools"], "prompt": talk.prompt}
