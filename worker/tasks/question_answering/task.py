"""Extractive question answering as SQuAD defines it, v1.1 and v2.0."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch.nn import functional

from service.contract.events import Notice
from service.contract.parameters import QuestionAnsweringSpec
from service.contract.spec import JobSpec
from service.contract.splits import TRAIN, is_validation, prefix
from worker.tasks.base import PrepareContext, PreparedSplit, Task, parameters_of, train_features
from worker.tasks.common import feature_file
from worker.tasks.common.padding import pad, takes_token_types
from worker.tasks.describe import Describer
from worker.tasks.question_answering import metrics as qa_metrics
from worker.tasks.question_answering.features import Windows
from worker.tasks.question_answering.null_threshold import Threshold
from worker.tasks.question_answering.postprocessing import (
    Answers,
    Floats,
    Integers,
    SpanOptions,
    Spans,
    WindowBatch,
    best_spans,
    choose,
    concatenate,
    null_spans,
)
from worker.training.objective import Batch, Evaluation, Features, Forward, Objective

_FORMAT_VERSION: Final = 1  # of the features; a new version prepares data again
_SAMPLES: Final = 3
_LABELS: Final = ("start_positions", "end_positions")


class QuestionAnswering(Task):
    name = "question-answering"
    length_option = "max_seq_length"
    offsets_in_training = False
    token_types = False
    """Whether to request token types that the tokenizer does not return by default."""

    def needs_offsets(self, parameters: QuestionAnsweringSpec) -> str | None:  # noqa: ARG002
        return "which characters each token covers, and answers are spans of characters"

    def max_length(self, parameters: QuestionAnsweringSpec, limit: int | None) -> int:  # noqa: ARG002
        return parameters.max_seq_length

    def target(self, describer: Describer, feature: Mapping[str, Any]) -> str:
        first, last = feature["start_positions"], feature["end_positions"]
        ids = feature["input_ids"]
        if first == last and ids[first] in describer.tokenizer.all_special_ids:
            return "no answer in this window"
        answer = describer.text(ids[first : last + 1]).strip()
        return f"answer: {answer} (tokens {first} to {last})"

    def auto_model(self) -> Any:
        from transformers import AutoModelForQuestionAnswering

        return AutoModelForQuestionAnswering

    def example_schema(self) -> Any:
        from datasets import Features, List, Value

        return Features(
            {
                "id": Value("string"),
                "question": Value("string"),
                "context": Value("large_string"),
                "answers": {"text": List(Value("string")), "answer_start": List(Value("int64"))},
            }
        )

    def tokenization_settings(self, parameters: QuestionAnsweringSpec) -> Mapping[str, Any]:
        return {
            "format": _FORMAT_VERSION,
            "version_2_with_negative": parameters.version_2_with_negative,
            "max_seq_length": parameters.max_seq_length,
            "doc_stride": parameters.doc_stride,
            "offsets_in_training": self.offsets_in_training,
        }

    def prepare(self, split: str, examples: Any, context: PrepareContext, target: Path) -> int:
        parameters = parameters_of(context.spec, QuestionAnsweringSpec)
        windows = Windows(
            context.tokenizer, parameters, token_types=self.token_types, measures=context.measures
        )
        with_offsets = self.offsets_in_training or split != TRAIN
        schema = _feature_schema(token_types=windows.token_types, with_offsets=with_offsets)

        def columns(first: int, rows: Mapping[str, Any]) -> Mapping[str, Any]:
            return windows.features(rows, first, with_offsets=with_offsets)

        count = feature_file.write(examples, columns, schema, context, target, windows.growth)
        if windows.shortened:
            context.notice(_shortened_notice(split, windows.shortened))
        return count

    def bind(
        self, spec: JobSpec, tokenizer: Any, model: Any, splits: Mapping[str, PreparedSplit]
    ) -> Objective:
        parameters = parameters_of(spec, QuestionAnsweringSpec)
        threshold = Threshold.of(spec, parameters, model.config)
        return QuestionAnsweringObjective(
            parameters, tokenizer, splits, threshold, token_types=takes_token_types(model)
        )


def _feature_schema(*, token_types: bool, with_offsets: bool) -> dict[str, Any]:
    from datasets import List, Value

    schema: dict[str, Any] = {"input_ids": List(Value("int32"))}
    if token_types:
        schema["token_type_ids"] = List(Value("int8"))
    schema |= dict.fromkeys(_LABELS, Value("int32"))
    if with_offsets:
        schema |= {"example": Value("int32"), "null_token": Value("int32")}
        schema |= {"offset_start": List(Value("int32")), "offset_end": List(Value("int32"))}
    return schema


def _shortened_notice(split: str, count: int) -> Notice:
    return Notice(
        message=f"{count} questions of the {split} split were cut: they left no room for context. "
        "Raise `max_seq_length` or lower `doc_stride` to keep them whole.",
        data={"split": split, "questions": count},
    )


class QuestionAnsweringObjective(Objective):
    def __init__(
        self,
        parameters: QuestionAnsweringSpec,
        tokenizer: Any,
        splits: Mapping[str, PreparedSplit],
        threshold: Threshold,
        *,
        token_types: bool,
    ) -> None:
        self._parameters = parameters
        self._threshold = threshold
        self._token_types = token_types
        self._tokenizer = tokenizer
        self._splits = splits
        self.train_features: Features = train_features(splits)

    @property
    def _min_length(self) -> int:
        """The minimum length that batches are padded to, in tokens."""
        return 0

    def collate(self, features: list[Mapping[str, Any]]) -> Batch:
        return self._padded(features, [*self._input_names(features), *_LABELS])

    def item_count(self, batch: Batch) -> int:
        return len(batch["input_ids"])

    def loss_sum(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        inputs = {name: tensor for name, tensor in batch.items() if name not in _LABELS}
        output = model(**inputs)
        is_padding = batch["attention_mask"] == 0
        start, end = (
            _without_padding(logits, is_padding)
            for logits in (output.start_logits, output.end_logits)
        )
        return _losses(start, end, batch).sum()

    def evaluate(self, split: str, forward: Forward, folder: Path) -> Evaluation | None:
        if split not in self._splits:
            return None
        data = self._splits[split]
        options = SpanOptions(self._parameters.n_best_size, self._parameters.max_answer_length)
        answers, loss = self._answer(data, forward, options, self._threshold.at_first)
        rows = data.examples.select_columns(["id", "answers"])
        golds = {row["id"]: row["answers"]["text"] for row in rows}
        chosen, config = self._threshold.applied(split, golds, answers)
        metrics = {}
        if is_validation(split) or self._has_answers(golds):
            # The best thresholds are found on the answers before any is removed.
            found = self._metrics(golds, answers) if chosen is not answers else {}
            best = {name: value for name, value in found.items() if name.startswith("best_")}
            metrics = self._metrics(golds, chosen) | best | {"loss": loss}
        return Evaluation(
            metrics=metrics,
            files=self._write(chosen, folder, prefix(split)),
            samples=_samples(data.examples, chosen),
            config=config,
        )

    def _has_answers(self, golds: qa_metrics.Golds) -> bool:
        """Whether a test split has gold answers: for all questions, or with v2 for at least one."""
        some = any if self._parameters.version_2_with_negative else all
        return some(map(bool, golds.values()))

    def _answer(
        self, data: PreparedSplit, forward: Forward, options: SpanOptions, threshold: float
    ) -> tuple[Answers, float]:
        """The answers to all questions, and the mean loss of the windows."""
        collected = _Collected(data.features, padded_left=self._tokenizer.padding_side == "left")
        for indices, output in forward(data.features, self._eval_collate):
            collected.add(indices, output, options)
        chosen = self._choose(data.examples, collected, options, threshold)
        return chosen, collected.mean_loss()

    def _eval_collate(self, features: list[Mapping[str, Any]]) -> Batch:
        return self._padded(features, self._input_names(features))

    def _input_names(self, features: list[Mapping[str, Any]]) -> list[str]:
        types = self._token_types and "token_type_ids" in features[0]
        return ["input_ids", "token_type_ids"] if types else ["input_ids"]

    def _padded(self, features: list[Mapping[str, Any]], names: list[str]) -> Batch:
        """Pad to the longest on the tokenizer's side; padding on the left shifts the labels."""
        lengths = [len(feature["input_ids"]) for feature in features]
        longest = max(self._min_length, *lengths)
        shifts = self._shifts(lengths, longest)
        fill = {"input_ids": self._tokenizer.pad_token_id}
        fill["token_type_ids"] = self._tokenizer.pad_token_type_id
        batch = {}
        for name in names:
            if name in _LABELS:
                shifted = [f[name] + shift for f, shift in zip(features, shifts, strict=True)]
                batch[name] = torch.tensor(shifted, dtype=torch.long)
            else:
                rows = [feature[name] for feature in features]
                batch[name] = pad(rows, shifts, longest, fill[name])
        ones = [np.ones(length, dtype=np.int64) for length in lengths]
        batch["attention_mask"] = pad(ones, shifts, longest, 0)
        return batch

    def _shifts(self, lengths: Sequence[int], longest: int) -> list[int]:
        """How many tokens the padding shifts each window by."""
        left = self._tokenizer.padding_side == "left"
        return [longest - length if left else 0 for length in lengths]

    def _choose(
        self, examples: Any, collected: "_Collected", options: SpanOptions, threshold: float
    ) -> Answers:
        v2 = self._parameters.version_2_with_negative
        nulls = concatenate(collected.nulls) if v2 else None
        questions = examples.select_columns(["id", "context"])
        return choose(questions, concatenate(collected.spans), nulls, options, threshold)

    def _metrics(self, golds: qa_metrics.Golds, answers: Answers) -> dict[str, float]:
        if self._parameters.version_2_with_negative:
            return qa_metrics.squad_v2(golds, answers.predictions, answers.null_odds)
        return qa_metrics.squad_v1(golds, answers.predictions)

    def _write(self, answers: Answers, folder: Path, start: str) -> dict[str, Path]:
        contents: dict[str, Any] = {
            "predictions.json": answers.predictions,
            "nbest_predictions.json": answers.nbest,
        }
        if self._parameters.version_2_with_negative:
            contents["null_odds.json"] = answers.null_odds
        folder.joinpath(start).mkdir(parents=True, exist_ok=True)
        files = {}
        for name, content in contents.items():
            path = files[start + name] = folder / f"{start}{name}"
            with path.open("w", encoding="utf-8") as file:
                json.dump(content, file, indent=2, ensure_ascii=False)
        return files


def _without_padding(logits: torch.Tensor, is_padding: torch.Tensor) -> torch.Tensor:
    """(batch, longest) with the lowest logit at padding, so that a softmax ignores it: no number
    depends on what a row is batched with. The question's tokens keep theirs, as in run_qa."""
    return logits.masked_fill(is_padding, torch.finfo(logits.dtype).min)


def _losses(start_logits: torch.Tensor, end_logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    """(batch,) mean of the cross entropies of start and end, in float32 even under autocast."""
    start = functional.cross_entropy(
        start_logits.float(), batch["start_positions"], reduction="none"
    )
    end = functional.cross_entropy(end_logits.float(), batch["end_positions"], reduction="none")
    return (start + end) / 2


class _Collected:
    """Collects the loss, the best spans and the null score of each window."""

    def __init__(self, features: Any, *, padded_left: bool) -> None:
        names = ["example", "null_token", "offset_start", "offset_end", *_LABELS]
        self._features = features.select_columns(names)
        self._padded_left = padded_left
        self._losses = np.zeros(len(features))
        self.spans: list[Spans] = []
        self.nulls: list[Spans] = []

    def add(self, indices: list[int], output: Any, options: SpanOptions) -> None:
        rows = self._features[indices]
        lengths = [len(offsets) for offsets in rows["offset_start"]]
        start, end = (
            self._aligned(logits, lengths) for logits in (output.start_logits, output.end_logits)
        )
        self._losses[indices] = _window_losses(start, end, rows)
        batch = WindowBatch(
            features=np.asarray(indices, dtype=np.int64),
            examples=np.asarray(rows["example"], dtype=np.int64),
            start_logits=start,
            end_logits=end,
            starts=_pad_offsets(rows["offset_start"], start.shape),
            ends=_pad_offsets(rows["offset_end"], start.shape),
            nulls=np.asarray(rows["null_token"], dtype=np.int64),
        )
        self.spans.append(best_spans(batch, options))
        self.nulls.append(null_spans(batch))

    def mean_loss(self) -> float:
        return float(self._losses.mean())

    def _aligned(self, logits: torch.Tensor, lengths: list[int]) -> Floats:
        """(batch, longest) logits with the first token of each window in column 0, and the lowest
        after its last."""
        values: Floats = logits.detach().float().cpu().numpy()
        longest, ends = values.shape[1], np.asarray(lengths)[:, None]
        columns = np.arange(longest)
        if self._padded_left:
            values = np.take_along_axis(values, (columns + longest - ends) % longest, axis=1)
        return np.where(columns < ends, values, np.finfo(values.dtype).min)


def _window_losses(start: Floats, end: Floats, rows: Mapping[str, Any]) -> Floats:
    labels = {name: torch.tensor(rows[name], dtype=torch.long) for name in _LABELS}
    losses: Floats = _losses(torch.from_numpy(start), torch.from_numpy(end), labels).numpy()
    return losses


def _pad_offsets(rows: list[list[int]], shape: tuple[int, ...]) -> Integers:
    filled = np.full(shape, -1, dtype=np.int64)
    for number, row in enumerate(rows):
        filled[number, : len(row)] = row
    return filled


def _samples(examples: Any, answers: Answers) -> list[dict[str, Any]]:
    """Questions spread over the split, with the context around their gold answer."""
    count = min(_SAMPLES, len(examples))
    picked = [len(examples) * number // count for number in range(count)]
    return [_sample(examples[index], answers) for index in picked]


def _sample(example: Mapping[str, Any], answers: Answers) -> dict[str, Any]:
    golds = example["answers"]
    centre = golds["answer_start"][0] if golds["answer_start"] else 0
    first = max(0, centre - 120)
    best = answers.nbest[example["id"]][:1]
    return {
        "id": example["id"],
        "question": example["question"],
        "context": example["context"][first : first + 300],
        "answers": list(dict.fromkeys(golds["text"])),
        "prediction": answers.predictions[example["id"]],
        "probability": best[0]["probability"] if best else None,
    }
