"""Extractive question answering as SQuAD defines it, v1.1 and v2.0."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch.nn import functional

from service.contract.spec.spec import JobSpec
from service.contract.spec.splits import TRAIN, is_validation, prefix
from service.contract.stage.events import Notice
from service.contract.tasks import metrics as metric_names
from service.contract.tasks.parameters import QuestionAnsweringSpec
from worker.tasks.base import PrepareContext, PreparedSplit, Task, parameters_of, train_features
from worker.tasks.common import feature_file
from worker.tasks.common.padding import Padding, pad
from worker.tasks.common.predictions import SAMPLES, spread
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
_LABELS: Final = ("start_positions", "end_positions")
_GROUPS: Final = {True: "HasAns_", False: "NoAns_"}
"""Whether questions have an answer → what the names of their metrics begin with."""


class QuestionAnswering(Task):
    name = "question-answering"
    length_option = "max_seq_length"
    auto_class = "AutoModelForQuestionAnswering"
    offsets_in_training = False
    token_types = False
    """Whether to request token types that the tokenizer does not return by default."""

    def needs_offsets(self, parameters: QuestionAnsweringSpec) -> str | None:  # noqa: ARG002
        return "which characters each token covers, and answers are spans of characters"

    def target(self, describer: Describer, feature: Mapping[str, Any]) -> str:
        first, last = feature["start_positions"], feature["end_positions"]
        ids = feature["input_ids"]
        if first == last and ids[first] in describer.tokenizer.all_special_ids:
            return "no answer in this window"
        answer = describer.text(ids[first : last + 1]).strip()
        return f"answer: {answer} (tokens {first} to {last})"

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

    def reported_metrics(self, spec: JobSpec, examples: Any, train: Any) -> list[str]:  # noqa: ARG002
        """Without those of questions that have an answer, or none, where there is no such one."""
        answers = examples.select_columns(["answers"])
        found = {bool(row["answers"]["text"]) for row in answers}
        absent = tuple(_GROUPS[answered] for answered in (True, False) if answered not in found)
        return [name for name in metric_names.names(spec.task) if not name.startswith(absent)]

    def prepare(self, split: str, examples: Any, context: PrepareContext, target: Path) -> int:
        from datasets import List, Value

        parameters = parameters_of(context.spec, QuestionAnsweringSpec)
        windows = Windows(
            context.tokenizer, parameters, token_types=self.token_types, measures=context.measures
        )
        with_offsets = self.offsets_in_training or split != TRAIN
        schema: dict[str, Any] = {"input_ids": List(Value("int32"))}
        if windows.token_types:
            schema["token_type_ids"] = List(Value("int8"))
        schema |= dict.fromkeys(_LABELS, Value("int32"))
        if with_offsets:
            schema |= {"example": Value("int32"), "null_token": Value("int32")}
            schema |= dict.fromkeys(("offset_start", "offset_end"), List(Value("int32")))

        def columns(first: int, rows: Mapping[str, Any]) -> Mapping[str, Any]:
            return windows.features(rows, first, with_offsets=with_offsets)

        count = feature_file.write(examples, columns, schema, context, target, windows.growth)
        if windows.shortened:
            message = (
                f"{windows.shortened} questions of the {split} split were cut: they left no room "
                "for context. Raise `max_seq_length` or lower `doc_stride` to keep them whole."
            )
            data = {"split": split, "questions": windows.shortened}
            context.notice(Notice(message=message, data=data))
        return count

    def bind(
        self, spec: JobSpec, tokenizer: Any, model: Any, splits: Mapping[str, PreparedSplit]
    ) -> Objective:
        return QuestionAnsweringObjective(spec, tokenizer, model, splits)


class QuestionAnsweringObjective(Objective):
    def __init__(
        self,
        spec: JobSpec,
        tokenizer: Any,
        model: Any,
        splits: Mapping[str, PreparedSplit],
        least: int = 0,
    ) -> None:
        """`least`: the minimum length of a batch in tokens."""
        self._parameters = parameters_of(spec, QuestionAnsweringSpec)
        self._threshold = Threshold.for_job(spec, self._parameters, model.config)
        self._padding = Padding(tokenizer, model, least)
        self._splits = splits
        self.train_features: Features = train_features(splits)

    def collate(self, features: list[Mapping[str, Any]]) -> Batch:
        """Padding on the left shifts the labels."""
        batch = self._padding.inputs(features)
        shifts = self._padding.shifts([feature["input_ids"] for feature in features])
        for name in _LABELS:
            shifted = [each[name] + shift for each, shift in zip(features, shifts, strict=True)]
            batch[name] = torch.tensor(shifted, dtype=torch.long)
        return batch

    def item_count(self, batch: Batch) -> int:
        return len(batch["input_ids"])

    def loss_sum(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        inputs = {name: tensor for name, tensor in batch.items() if name not in _LABELS}
        output = model(**inputs)
        is_padding = batch["attention_mask"] == 0
        # The lowest logit at padding, so that a softmax ignores it: no number depends on what a row
        # is batched with. The question's tokens keep theirs, as in run_qa.
        start, end = (
            logits.masked_fill(is_padding, torch.finfo(logits.dtype).min)
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
        shown = spread(len(data.examples), SAMPLES)
        return Evaluation(
            metrics=metrics,
            files=self._write(chosen, folder, prefix(split)),
            samples=[_sample(data.examples[index], chosen) for index in shown],
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
        collected = _Collected(data.features, padded_left=self._padding.left)
        for indices, output in forward(data.features, self._padding.inputs):
            collected.add(indices, output, options)
        chosen = self._choose(data.examples, collected, options, threshold)
        return chosen, collected.mean_loss()

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
        labels = {name: torch.tensor(rows[name], dtype=torch.long) for name in _LABELS}
        losses = _losses(torch.from_numpy(start), torch.from_numpy(end), labels)
        self._losses[indices] = losses.numpy()
        batch = WindowBatch(
            features=np.asarray(indices, dtype=np.int64),
            examples=np.asarray(rows["example"], dtype=np.int64),
            start_logits=start,
            end_logits=end,
            starts=pad_offsets(rows["offset_start"], start.shape[1]),
            ends=pad_offsets(rows["offset_end"], start.shape[1]),
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


def pad_offsets(rows: Sequence[Sequence[int]], length: int = 0) -> Integers:
    """(rows, longest or `length`); after the end of a row -1, which is not a valid offset."""
    padded: Integers = pad(rows, -1, least=length).numpy()
    return padded


def _sample(example: Mapping[str, Any], answers: Answers) -> dict[str, Any]:
    """A question with the context around its gold answer."""
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
