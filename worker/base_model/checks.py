"""Checking a model and its tokenizer before the job takes a GPU."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import CONFIG_MAPPING, AutoConfig, AutoTokenizer

from service.contract.failures import FailureCode, StageError
from service.contract.spec.spec import JobSpec
from service.contract.stage.events import Notice
from worker.base_model import resource_guard, size
from worker.base_model.json_files import broken, parse, read_bytes
from worker.base_model.size import Size
from worker.failures import invalid_option
from worker.tasks.base import Task
from worker.training import cpu_products

# The names of the table of learned or fixed absolute positions in models.
_POSITION_TABLES = frozenset({"position_embeddings", "embed_positions", "wpe"})
# Tokenizers without a limit have a number with thirty digits.
_NO_LIMIT = 10**9
_CONFIG_BYTES = 16 * 1024**2


@dataclass(frozen=True)
class ModelFit:
    max_length: int
    """The task's, for this model."""
    size: Size
    shapes: list[cpu_products.Shape]
    """Of the layers in which it multiplies most."""


def load_config(folder: Path, name: str) -> Any:
    """The model's configuration. Code from the repository is never run."""
    if not (folder / "config.json").is_file():
        raise StageError(FailureCode.MODEL_NOT_FOUND, f"{name!r} has no config.json")
    return resource_guard.build(
        f"Reading the config.json of {name!r}",
        lambda: AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True),
        _code_of_config(folder, name),
        folder=folder,
    )


def _code_of_config(folder: Path, name: str) -> FailureCode:
    """The failure for a config.json that cannot be used; an unknown model type is not a mistake in
    it."""
    config = parse(read_bytes(folder, "config.json", _CONFIG_BYTES, name), "config.json", name)
    kind = config.get("model_type")
    is_known = isinstance(kind, str) and kind in CONFIG_MAPPING
    return FailureCode.INVALID_MODEL if is_known else FailureCode.UNSUPPORTED_ARCHITECTURE


def load_tokenizer(folder: Path, name: str, task: Task, parameters: Any) -> Any:
    """The tokenizer, if it has what the task needs: offsets, a pad token."""
    tokenizer = resource_guard.build(
        f"Reading the tokenizer of {name!r}",
        lambda: AutoTokenizer.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True
        ),
        FailureCode.SLOW_TOKENIZER,
        folder=folder,
        is_native=True,
    )
    _check_files(folder, tokenizer, name)
    _check_chat_template(tokenizer, name)
    needs = task.needs_offsets(parameters)
    if needs is not None and not tokenizer.is_fast:
        raise StageError(
            FailureCode.SLOW_TOKENIZER,
            f"The tokenizer of {name!r} ({type(tokenizer).__name__}) is a slow one, written in "
            f"Python. It cannot tell {needs}",
        )
    if task.needs_pad_token and tokenizer.pad_token_id is None:
        raise StageError(FailureCode.NO_PAD_TOKEN, f"The tokenizer of {name!r} has no pad token")
    return tokenizer


def _check_chat_template(tokenizer: Any, name: str) -> None:
    """A value that is not text could not be saved with the finished model."""
    given = tokenizer.chat_template
    for template in given.values() if isinstance(given, dict) else [given]:
        if template is not None and not isinstance(template, str):
            raise broken(name, "chat_template", f"must be a text, not {type(template).__name__}")


def _check_files(folder: Path, tokenizer: Any, name: str) -> None:
    """Some classes load without any file, with an empty vocabulary: reject them."""
    files = [file for file in tokenizer.vocab_files_names.values() if (folder / file).is_file()]
    # Tokenizers of characters or bytes need no files.
    if tokenizer.vocab_files_names and not files:
        raise StageError(FailureCode.SLOW_TOKENIZER, f"{name!r} holds no tokenizer files")


def is_quantized(config: Any) -> bool:
    return getattr(config, "quantization_config", None) is not None


def without_weights(auto_model: Any, config: Any, *, from_spec: bool = False) -> Any:
    """The model with shapes only, which need no memory. StageError(model_too_large, and
    invalid_model; unsupported_architecture if the job's spec has the configuration)."""

    def make() -> Any:
        with torch.device("meta"):
            return auto_model.from_config(config)

    if from_spec:
        what = "Creating a model from `model.config`"
        return resource_guard.build(what, make, FailureCode.UNSUPPORTED_ARCHITECTURE)
    return resource_guard.build("Creating a model from config.json", make)


def require_head(task: Task, spec: JobSpec, config: Any) -> None:
    """StageError(unsupported_architecture) if models of this type cannot do the task; known from
    config.json alone, before weights are downloaded."""
    if type(config) not in task.auto_model()._model_mapping:
        raise StageError(
            FailureCode.UNSUPPORTED_ARCHITECTURE,
            f"A model of type {config.model_type!r} has no head for {spec.task.variant()}",
            action=task.without_head,
            model_type=config.model_type,
        )


def check_model(
    task: Task, spec: JobSpec, config: Any, tokenizer: Any, notice: Callable[[Notice], None]
) -> ModelFit:
    """Check that architecture, positions, vocabulary and adapter fit the task and tokenizer."""
    require_head(task, spec, config)
    model = without_weights(task.auto_model(), config, from_spec=spec.model.config is not None)
    total = size.of_model(model)

    def check() -> int:
        _check_vocabulary(model, tokenizer)
        return _max_length(task, spec, model, config, tokenizer)

    max_length = resource_guard.build("Comparing the tokenizer with config.json", check)
    if spec.peft is not None:
        _check_adapter(model, spec, tokenizer, notice)
    return ModelFit(max_length, total, cpu_products.shapes(model))


def _max_length(task: Task, spec: JobSpec, model: Any, config: Any, tokenizer: Any) -> int:
    """StageError(sequence_too_long) if the job wants more than the model's position table holds."""
    # Virtual tokens take positions that the text cannot use.
    reserved = spec.peft.virtual_tokens if spec.peft is not None else 0
    table = position_limit(model, config)
    if table is not None:
        table = _left_for_text(table, reserved)
    max_length = task.max_length(spec.task, _natural_limit(table, config, tokenizer, reserved))
    if table is not None and max_length > table:
        raise StageError(
            FailureCode.SEQUENCE_TOO_LONG,
            f"`{task.length_option}` is {max_length}, but the model's position table holds {table}"
            + (f" in addition to {reserved} virtual tokens" if reserved else ""),
            action=f"Lower `task.{task.length_option}` to at most {table}, then submit again.",
            limit=table,
            **{task.length_option: max_length},
        )
    return max_length


def _left_for_text(places: int, reserved: int) -> int:
    if places <= reserved:
        raise invalid_option(
            "peft.num_virtual_tokens",
            f"is {reserved}, but the model has only {places} positions",
        )
    return places - reserved


def _check_adapter(
    model: Any, spec: JobSpec, tokenizer: Any, notice: Callable[[Notice], None]
) -> None:
    from worker.training.adapters import checks  # takes seconds, and most jobs have no adapter

    for warning in checks.check(model, spec, pads_left=tokenizer.padding_side == "left"):
        notice(Notice(message=f"peft says: {warning}"))


def _natural_limit(table: int | None, config: Any, tokenizer: Any, reserved: int) -> int | None:
    """The text length that the model was made for, in tokens; rotary models have a number that no
    table enforces."""
    stated = getattr(config, "max_position_embeddings", None)
    known = [table] if table is not None else []
    if stated is not None and stated > 0:  # XLNet has -1
        known.append(stated - reserved)
    if tokenizer.model_max_length < _NO_LIMIT:
        known.append(tokenizer.model_max_length)
    return min(known, default=None)


def position_limit(model: nn.Module, config: Any) -> int | None:
    """Tokens that the model's position table holds; None for a model without one.

    Rotary, relative and other computed positions have no table, whatever the config states.
    """
    sizes = [
        _usable_rows(module)
        for name, module in model.named_modules()
        if name.rpartition(".")[2] in _POSITION_TABLES and isinstance(module, nn.Embedding)
    ]
    if not sizes:
        return None
    stated = getattr(config, "max_position_embeddings", None)
    return min([*sizes, stated] if stated else sizes)


def _usable_rows(table: nn.Embedding) -> int:
    """Models like RoBERTa count positions from the padding index, models like BART from an
    offset."""
    unused = getattr(table, "offset", 0) if table.padding_idx is None else table.padding_idx + 1
    return table.num_embeddings - int(unused)


def _check_vocabulary(model: Any, tokenizer: Any) -> None:
    rows = model.get_input_embeddings().num_embeddings
    vocabulary = tokenizer.get_vocab()
    if not vocabulary:
        raise StageError(FailureCode.SLOW_TOKENIZER, "The tokenizer has an empty vocabulary")
    highest = max(vocabulary.values())
    if highest >= rows:
        raise StageError(
            FailureCode.INVALID_OPTION,
            f"The tokenizer has token ids up to {highest}, but the model embeds only {rows}: "
            "set `model.tokenizer_name` to the tokenizer that the model was trained with",
            tokenizer=highest + 1,
            model=rows,
        )
