"""Supervised fine-tuning on conversations: predict the tokens of the assistant's turns."""

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from service.contract.failures import FailureCode, StageError
from service.contract.spec.spec import JobSpec
from service.contract.spec.splits import TEST, TRAIN
from service.contract.stage.events import Notice
from service.contract.tasks.chat import ChatSpec
from worker.tasks import describe
from worker.tasks.base import PrepareContext, PreparedSplit, Task, parameters_of
from worker.tasks.chat import answers, lengths, templates, tokenizing
from worker.tasks.chat.objective import ChatObjective
from worker.tasks.chat.prompts import Prompts
from worker.tasks.common import sequence_features
from worker.tasks.common.list_columns import ListColumns
from worker.tasks.describe import Describer
from worker.training import build
from worker.training.loss import chunked_cross_entropy
from worker.training.objective import Objective

_FORMAT_VERSION: Final = 1  # of the features; a new version prepares data again
_PACKED_LENGTH: Final = 1024
"""Packed examples have at least this many tokens, if the model takes them: where the longest row
fills an example there is hardly room for a second one."""
_NAMED: Final = 10
"""Rows whose numbers are listed in a notice."""
COLUMNS: Final = ("input_ids", "trained")


class Chat(Task):
    name = "chat"
    length_option = "max_length"
    auto_class = "AutoModelForCausalLM"
    needs_pad_token = False
    tokenizes_rows = True

    def max_length(self, parameters: ChatSpec, limit: int | None) -> int:
        """Of any row; if the option is left out, features may be shorter."""
        return parameters.max_length or limit or answers.DEFAULT_LIMIT

    def target(self, describer: Describer, feature: Mapping[str, Any]) -> str:
        return describe.trained_text(describer, feature)

    def trained(self, feature: Mapping[str, Any]) -> list[bool]:
        return describe.following(feature)

    def example_schema(self) -> Any:
        from datasets import Features

        return Features(tokenizing.schema())

    def row_tokenizer(
        self, spec: JobSpec, tokenizer: Any, max_length: int, split: str
    ) -> Callable[[dict[str, Any]], dict[str, Any]]:
        parameters = parameters_of(spec, ChatSpec)
        return tokenizing.row_tokenizer(tokenizer, parameters, max_length, must_train=split != TEST)

    def tokenization_settings(self, parameters: ChatSpec) -> Mapping[str, Any]:
        return {
            "format": _FORMAT_VERSION,
            "length": "option" if parameters.max_length is not None else "from rows",
            "chat_template": templates.setting(parameters.chat_template),
            "train_on": parameters.train_on,
            "packing": parameters.packing,
            "answers": answers.settings(parameters.generate),
        }

    def prepare(self, split: str, examples: Any, context: PrepareContext, target: Path) -> int:
        parameters = parameters_of(context.spec, ChatSpec)
        templates.infer(context.tokenizer, parameters.chat_template, context.inferences)
        columns = ListColumns(examples, COLUMNS)
        length = _feature_length(parameters, context)
        _report(split, columns, length, context)
        _report_thinking(split, examples, context)
        if split == TRAIN and parameters.packing == "bfd":
            count = sequence_features.write_packed(columns, length, context, target)
            rows = len(columns)
            message = (
                f"`task.packing`: the {rows:,} conversations of the train split are packed into "
                f"{count:,} examples of at most {length:,} tokens, which "
                "`training.per_device_train_batch_size` counts"
            )
            data = {"split": TRAIN, "rows": rows, "examples": count, "max_length": length}
            context.notice(Notice(message=message, data=data))
            return count
        context.measures.windows = Counter({1: len(columns)})
        if split == TRAIN or parameters.generate is None:
            return sequence_features.write_each(columns, length, context, target)
        prompts = Prompts(split, examples, context, parameters)
        more = {"prompt_ids": prompts}
        count = sequence_features.write_each(columns, length, context, target, more)
        prompts.report()
        return count

    def bind(
        self, spec: JobSpec, tokenizer: Any, model: Any, splits: Mapping[str, PreparedSplit]
    ) -> Objective:
        parameters = parameters_of(spec, ChatSpec)
        answers.set_up(model, tokenizer, parameters)
        linear = chunked_cross_entropy.plain_head(model) if build.may_capture_head(spec) else None
        return ChatObjective(splits, model, tokenizer, parameters, linear)


def _feature_length(parameters: ChatSpec, context: PrepareContext) -> int:
    """The option, or what nearly all training rows need; the same for every split."""
    if parameters.max_length is not None or not context.train_examples:
        return context.max_length
    rows = ListColumns(context.train_examples, COLUMNS)
    chosen = lengths.chosen(rows.lengths, lengths.first_trained(rows))
    if parameters.packing == "bfd":
        chosen = max(chosen, _PACKED_LENGTH)
    return min(chosen, context.max_length)


def _report(split: str, columns: ListColumns, length: int, context: PrepareContext) -> None:
    """Count what is trained and what is cut, and report it. StageError if no row of a split that is
    evaluated trains a token."""
    cut = lengths.Cut.from_lengths(columns, length)
    trained = lengths.trained_within(columns, length)
    context.measures.tokens.add(columns.lengths, cut.rows)
    context.counts.update(
        tokens=int(columns.lengths.sum()),
        trained_tokens=int(trained.sum()),
        dropped_tokens=cut.tokens,
        truncated_rows=cut.rows,
        max_length=length,
    )
    is_chosen = parameters_of(context.spec, ChatSpec).max_length is None
    if split == TRAIN and is_chosen:
        context.notice(lengths.choice_notice(columns.lengths, length, cut))
    elif cut.rows:
        context.notice(lengths.cut_notice(split, length, cut))
    _report_unscored(split, np.flatnonzero(trained == 0), len(columns), length, context)


def _report_thinking(split: str, examples: Any, context: PrepareContext) -> None:
    """Say how many turns of a split are trained, or scored, without their thinking."""
    turns = np.asarray(examples.with_format("numpy")["without_thinking"])
    if split == TEST or not turns.any():
        return
    rows = int((turns > 0).sum())
    message = (
        f"{int(turns.sum()):,} turns of the {split} split, in {rows:,} rows, are trained without "
        "their thinking: the chat template shows it after the last question only, as it does when "
        "the model is used. To train no turn without its thinking, set `task.train_on: last`, or "
        "give each of these turns a row in which it is the last"
    )
    data = {"split": split, "turns_without_thinking": int(turns.sum()), "rows": rows}
    context.notice(Notice(message=message, data=data))


def _report_unscored(
    split: str, rows: Any, total: int, length: int, context: PrepareContext
) -> None:
    """Rows of the test split may lack an answer; those of a validation split are checked, so that
    these were cut before their first trained token."""
    if split == TEST or not len(rows):
        return
    named = ", ".join(f"{row + 1:,}" for row in rows[:_NAMED].tolist())
    shown = f"{named}{', …' if len(rows) > _NAMED else ''}"
    message = (
        f"{len(rows):,} of {total:,} rows of the {split} split train no token within {length:,} "
        f"tokens and are not scored (rows {shown}): raise `task.max_length` to score them"
    )
    if len(rows) == total:
        raise StageError(FailureCode.EMPTY_DATASET, message, split=split)
    data = {"split": split, "unscored_rows": len(rows), "max_length": length}
    context.notice(Notice(message=message, data=data))
