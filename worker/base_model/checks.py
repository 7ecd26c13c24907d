"""Checking a model and its tokenizer before the job takes a GPU."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoTokenizer

from service.contract.events import Notice
from service.contract.failures import FailureCode, StageError
from service.contract.spec import JobSpec
from worker import failures
from worker.failures import invalid_option
from worker.tasks.base import Task

# The names of the table of learned or fixed absolute positions in models.
_POSITION_TABLES = frozenset({"position_embeddings", "embed_positions", "wpe"})
# Tokenizers without a limit have a number with thirty digits.
_NO_LIMIT = 10**9


def load_config(folder: Path, name: str) -> Any:
    """The model's configuration. Code from the repository is never run."""
    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        _raise_machine_fault(error)
        known = (folder / "config.json").is_file()
        raise StageError(
            FailureCode.UNSUPPORTED_ARCHITECTURE if known else FailureCode.MODEL_NOT_FOUND,
            f"{name!r} has no usable config.json: {failures.describe(error)}",
        ) from error


def load_tokenizer(folder: Path, name: str, task: Task, parameters: Any) -> Any:
    """The tokenizer, if it has what the task needs: offsets, a pad token."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True
        )
    except (OSError, ValueError, KeyError, ImportError, TypeError) as error:
        _raise_machine_fault(error)
        raise StageError(
            FailureCode.SLOW_TOKENIZER,
            f"The tokenizer of {name!r} cannot be loaded: {failures.describe(error)}",
        ) from error
    _check_files(folder, tokenizer, name)
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


def _check_files(folder: Path, tokenizer: Any, name: str) -> None:
    """Some classes load without any file, with an empty vocabulary: reject them."""
    files = [file for file in tokenizer.vocab_files_names.values() if (folder / file).is_file()]
    # Tokenizers of characters or bytes need no files.
    if tokenizer.vocab_files_names and not files:
        raise StageError(FailureCode.SLOW_TOKENIZER, f"{name!r} holds no tokenizer files")


def check_model(
    task: Task, spec: JobSpec, config: Any, tokenizer: Any, notice: Callable[[Notice], None]
) -> int:
    """Check that architecture, position table, vocabulary and adapter fit the task and tokenizer.

    Returns the task's `max_length` for this model.
    """
    parameters = spec.task
    auto = task.auto_model()
    if type(config) not in auto._model_mapping:
        raise StageError(
            FailureCode.UNSUPPORTED_ARCHITECTURE,
            f"A model of type {config.model_type!r} has no head for {parameters.variant()}",
            model_type=config.model_type,
        )
    try:
        with torch.device("meta"):  # shapes only, no memory
            model = auto.from_config(config)
    except (ValueError, TypeError, KeyError) as error:
        message = f"Cannot create a model from this configuration: {failures.describe(error)}"
        raise StageError(FailureCode.UNSUPPORTED_ARCHITECTURE, message) from error
    # Virtual tokens take positions that the text cannot use.
    reserved = spec.peft.virtual_tokens if spec.peft is not None else 0
    table = position_limit(model, config)
    if table is not None:
        table = _left_for_text(table, reserved)
    max_length = task.max_length(parameters, _natural_limit(table, config, tokenizer, reserved))
    if table is not None and max_length > table:
        raise StageError(
            FailureCode.SEQUENCE_TOO_LONG,
            f"`{task.length_option}` is {max_length}, but the model's position table holds {table}"
            + (f" in addition to {reserved} virtual tokens" if reserved else ""),
            action=f"Lower `task.{task.length_option}` to at most {table}, then submit again.",
            limit=table,
            **{task.length_option: max_length},
        )
    _check_vocabulary(model, tokenizer)
    if spec.peft is not None:
        _check_adapter(model, spec, tokenizer, notice)
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

    Rotary, relative and other computed positions have no table, whatever the config says.
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
    highest = max(tokenizer.get_vocab().values())
    if highest >= rows:
        raise StageError(
            FailureCode.INVALID_OPTION,
            f"The tokenizer has token ids up to {highest}, but the model embeds only {rows}: "
            "set `model.tokenizer_name` to the tokenizer that the model was trained with",
            tokenizer=highest + 1,
            model=rows,
        )


def _raise_machine_fault(error: Exception) -> None:
    """Raise errors of the machine, such as a full disk: the model is not to blame for them."""
    if failures.from_exception(error).code is not FailureCode.INTERNAL:
        raise error
