"""Predictions of a causal language model: how it continues each row."""

import copy
from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from transformers import GenerationConfig

from service.contract.failures import FailureCode, StageError
from service.contract.spec.spec import JobSpec
from service.contract.stage.events import Notice
from service.contract.tasks.parameters import NEW_TOKENS, CausalLMSpec
from worker.data.report import Lengths
from worker.failures import invalid_option
from worker.tasks.base import PrepareContext, PreparedSplit, parameters_of
from worker.tasks.common import feature_file
from worker.tasks.common.generation import GenerationObjective, Generator, fill_token
from worker.tasks.language_modeling.causal_lm import CausalLM
from worker.tasks.language_modeling.features import DEFAULT_LENGTH
from worker.training.objective import Objective

_FORMAT_VERSION: Final = 1  # of the features; a new version prepares data again


class TextGeneration(CausalLM):
    """Causal language modelling with `mode: predict`."""

    length_option = "max_new_tokens"

    def max_length(self, parameters: CausalLMSpec, limit: int | None) -> int:
        """The longest prompt: the model's limit minus the tokens to generate."""
        limit = limit or self.default_length
        prompt_length = limit - new_tokens(parameters, limit)
        if prompt_length < 1:
            raise invalid_option(
                "task.max_new_tokens",
                f"is {parameters.max_new_tokens}, which leaves no room for a "
                f"prompt: the model's limit is {limit} tokens",
                limit=limit,
            )
        return prompt_length

    def tokenization_settings(self, parameters: CausalLMSpec) -> Mapping[str, Any]:  # noqa: ARG002
        return {"prompts": _FORMAT_VERSION}

    def prepare(self, split: str, examples: Any, context: PrepareContext, target: Path) -> int:
        from datasets import List, Value

        prompts = _Prompts(context.tokenizer, context.max_length, split)

        def columns(first: int, rows: Mapping[str, Any]) -> Mapping[str, Any]:
            return {"input_ids": prompts.tokens(first, rows["text"], context.measures.tokens)}

        schema = {"input_ids": List(Value("int32"))}
        count = feature_file.write(examples, columns, schema, context, target)
        if prompts.cut:
            message = (
                f"{prompts.cut} prompts of the {split} split were cut to their last "
                f"{context.max_length} tokens, because the model's limit includes the new tokens. "
                "Lower `max_new_tokens` to keep more."
            )
            data = {"split": split, "prompts": prompts.cut, "tokens": context.max_length}
            context.notice(Notice(message=message, data=data))
        return count

    def bind(
        self, spec: JobSpec, tokenizer: Any, model: Any, splits: Mapping[str, PreparedSplit]
    ) -> Objective:
        config = generation_config(model, tokenizer, parameters_of(spec, CausalLMSpec))
        return GenerationObjective(splits, Generator(tokenizer, config), itemgetter("text"))


def new_tokens(parameters: CausalLMSpec, limit: int | None) -> int:
    """The maximum number of tokens to generate."""
    return parameters.max_new_tokens or min(NEW_TOKENS, (limit or DEFAULT_LENGTH) // 2)


def generation_config(model: Any, tokenizer: Any, parameters: CausalLMSpec) -> GenerationConfig:
    """The model's generation config with the options of the job."""
    config: GenerationConfig = copy.deepcopy(model.generation_config)
    given = parameters.generation.model_dump(exclude_none=True)
    if parameters.num_beams is not None:
        given["num_beams"] = parameters.num_beams
    limit = getattr(model.config, "max_position_embeddings", None)
    config.update(**given, max_new_tokens=new_tokens(parameters, limit), max_length=None)
    config.pad_token_id = fill_token(tokenizer)
    return config


class _Prompts:
    """Tokenizes prompts, without the EOS token that some tokenizers add; counts those it cuts."""

    def __init__(self, tokenizer: Any, length: int, split: str) -> None:
        self._tokenizer = tokenizer
        self._length = length
        self._split = split
        self.cut = 0

    def tokens(self, first: int, texts: Sequence[str], lengths: Lengths) -> list[list[int]]:
        # Lines of a text file keep their line break.
        encoded = self._tokenizer(
            [text.removesuffix("\n") for text in texts],
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,  # no warnings about long texts
        )
        found = [len(ids) for ids in encoded["input_ids"]]
        lengths.add(found, sum(length > self._length for length in found))
        rows = enumerate(encoded["input_ids"], start=first + 1)
        return [self._prompt(number, list(ids)) for number, ids in rows]

    def _prompt(self, number: int, ids: list[int]) -> list[int]:
        end, begin = self._tokenizer.eos_token_id, self._tokenizer.bos_token_id
        if len(ids) > 1 and ids[-1] == end:
            ids = ids[:-1]
        if not ids and begin is None:
            raise StageError(
                FailureCode.UNREADABLE_ROW,
                f"Row {number} of the {self._split} split is empty, and the tokenizer has no "
                "BOS token to start from: give the row a text",
                row=number,
            )
        self.cut += len(ids) > self._length
        return ids[-self._length :] or [int(begin)]
