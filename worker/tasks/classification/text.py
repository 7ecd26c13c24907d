"""Text classification and regression: predict a label, several labels or a number for one text or
a pair."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch.nn import functional

from service.contract.spec.spec import JobSpec
from service.contract.spec.splits import TRAIN, is_validation
from service.contract.stage.events import Notice
from service.contract.tasks import metrics as metric_names
from service.contract.tasks.parameters import TextClassificationSpec
from worker.data.inferences import Inferences
from worker.data.table import Row
from worker.failures import invalid_option
from worker.tasks.base import (
    PrepareContext,
    PreparedSplit,
    Task,
    parameters_of,
    train_examples,
    train_features,
)
from worker.tasks.classification import label_rows, labels, text_rows
from worker.tasks.classification import metrics as classification_metrics
from worker.tasks.classification.metrics import Floats
from worker.tasks.classification.text_rows import MULTI, REGRESSION, SINGLE, Scheme
from worker.tasks.common import feature_file, predictions
from worker.tasks.common.padding import Padding
from worker.tasks.describe import Describer
from worker.training.loss import label_smoothing
from worker.training.objective import Batch, Evaluation, Features, Forward, LossSum, Objective

_FORMAT_VERSION: Final = 3  # of the features; a new version prepares data again


class TextClassification(Task):
    name = "text-classification"
    length_option = "max_seq_length"
    default_length = 128
    auto_class = "AutoModelForSequenceClassification"

    def target(self, describer: Describer, feature: Mapping[str, Any]) -> str:
        parameters = parameters_of(describer.spec, TextClassificationSpec)
        scheme = Scheme.from_examples(parameters, describer.train_examples)
        target = feature["labels"]
        if scheme.problem == REGRESSION:
            return f"number: {target:g}"
        names = scheme.classes.names
        if scheme.problem == SINGLE:
            return f"label: {names[target]}"
        chosen = [name for name, given in zip(names, target, strict=True) if given]
        return f"labels: {', '.join(chosen) or 'none'}"

    def example_schema(self) -> Any:
        from datasets import Features, List, Value

        return Features(
            {
                "text": Value("large_string"),
                "text_pair": Value("large_string"),
                "labels": List(Value("string")),
                "number": Value("float64"),
                "form": Value("string"),
            }
        )

    def tokenization_settings(self, parameters: TextClassificationSpec) -> Mapping[str, Any]:
        return {
            "format": _FORMAT_VERSION,
            "problem_type": parameters.problem_type,
            "label_names": labels.settings(parameters.label_names),
            "label_format": parameters.label_format,
            "label_columns": parameters.label_columns,
        }

    def with_labels_of(
        self, parameters: TextClassificationSpec, config: Any
    ) -> TextClassificationSpec:
        problem = text_rows.problem_of_model(parameters.known_problem(), config)
        names = None
        if problem != REGRESSION:
            names = labels.of_model(parameters.names(), config)
        return parameters.model_copy(update={"problem_type": problem, "label_names": names})

    def config_overrides(
        self, spec: JobSpec, splits: Mapping[str, PreparedSplit]
    ) -> Mapping[str, Any]:
        parameters = parameters_of(spec, TextClassificationSpec)
        return Scheme.from_examples(parameters, train_examples(splits)).config()

    def reported_metrics(self, spec: JobSpec, examples: Any, train: Any) -> tuple[str, ...]:  # noqa: ARG002
        parameters = parameters_of(spec, TextClassificationSpec)
        problem = Scheme.from_examples(parameters, train).problem
        return metric_names.names(parameters.model_copy(update={"problem_type": problem}))

    def label_check(self, spec: JobSpec, examples: Any) -> Callable[[Row], None]:
        return Scheme.from_examples(parameters_of(spec, TextClassificationSpec), examples).require

    def infer(self, spec: JobSpec, examples: Any, found: Inferences) -> Iterator[Notice]:
        parameters = parameters_of(spec, TextClassificationSpec)
        text_rows.infer(parameters, examples, found)
        if examples is not None:
            names = Scheme.from_examples(parameters, examples).classes.names
            yield from labels.doubtful(names, examples, "labels")

    def prepare(self, split: str, examples: Any, context: PrepareContext, target: Path) -> int:
        parameters = parameters_of(context.spec, TextClassificationSpec)
        scheme = Scheme.from_examples(parameters, context.train_examples)
        inputs, cut = feature_file.inputs(context.tokenizer), 0

        def columns(_first: int, rows: Mapping[str, Any]) -> Mapping[str, Any]:
            nonlocal cut
            encoded = _encode(context, rows)

            def whole(numbers: list[int]) -> Any:
                picked = {name: [rows[name][n] for n in numbers] for name in ("text", "text_pair")}
                return _encode(context, picked, truncation=False)["input_ids"]

            lengths = context.measures.tokens
            cut += feature_file.measure(lengths, encoded["input_ids"], context.max_length, whole)
            targets = scheme.targets(split, rows)
            return {**{name: encoded[name] for name in inputs}, "labels": targets}

        schema = {**inputs, "labels": scheme.target_type()}
        count = feature_file.write(examples, columns, schema, context, target)
        context.measures.windows = Counter({1: count})
        context.measures.labels = labels.counts(examples, "labels")
        for notice in _rows_of_labels(split, scheme.classes.names, context):
            context.notice(notice)
        if cut:
            message = (
                f"{cut} texts of the {split} split were cut to {context.max_length} tokens. "
                "Raise `max_seq_length` to keep more of them."
            )
            data = {"split": split, "texts": cut, "max_seq_length": context.max_length}
            context.notice(Notice(message=message, data=data))
        return count

    def bind(
        self, spec: JobSpec, tokenizer: Any, model: Any, splits: Mapping[str, PreparedSplit]
    ) -> "TextClassificationObjective":
        if model.config.pad_token_id is None:  # decoders classify the last token before the padding
            model.config.pad_token_id = tokenizer.pad_token_id
        scheme = Scheme.from_examples(
            parameters_of(spec, TextClassificationSpec), train_examples(splits)
        )
        return TextClassificationObjective(scheme, Padding(tokenizer, model), splits)


def _rows_of_labels(split: str, names: Sequence[str], context: PrepareContext) -> Iterator[Notice]:
    """`names`: empty for regression."""
    counted, rows = context.measures.labels, context.rows_of(split)
    if not names or counted is None:
        return
    if split == TRAIN:
        if parameters_of(context.spec, TextClassificationSpec).names() is not None:
            yield label_rows.how_many(names, counted, rows)  # else reported with the names
        yield from label_rows.of_training(names, counted, rows)
    elif is_validation(split):
        train = context.train_examples
        of_train = None if train is None else labels.counts(train, "labels")
        train_rows = context.rows_of(TRAIN)
        yield from label_rows.of_validation(names, counted, rows, of_train, train_rows)


def _encode(context: PrepareContext, rows: Mapping[str, Any], *, truncation: bool = True) -> Any:
    pairs = rows["text_pair"]
    return context.tokenizer(
        rows["text"],
        None if pairs[0] is None else pairs,
        truncation=truncation,
        max_length=context.max_length if truncation else None,
        padding=False,
        return_attention_mask=False,
        verbose=False,
    )


class TextClassificationObjective(Objective):
    def __init__(
        self, scheme: Scheme, padding: Padding, splits: Mapping[str, PreparedSplit]
    ) -> None:
        self._scheme = scheme
        self._padding = padding
        self._splits = splits
        self.train_features: Features = train_features(splits)

    def collate(self, features: list[Mapping[str, Any]]) -> Batch:
        batch = self._padding.inputs(features)
        batch["labels"] = self._targets([feature["labels"] for feature in features])
        return batch

    def item_count(self, batch: Batch) -> int:
        return len(batch["input_ids"])

    def loss_sum(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
        return self._losses(model(**inputs).logits, batch["labels"]).sum()

    def smoothed(self, factor: float) -> LossSum:
        return label_smoothing.of_logits(self.logits_and_labels, factor)

    def logits_and_labels(
        self, model: torch.nn.Module, batch: Batch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Raises StageError(invalid_option) unless each row has a single label to smooth."""
        if self._scheme.problem != SINGLE:
            option = "training.label_smoothing_factor"
            raise invalid_option(
                option, f"needs one label per row, but the problem type is {self._scheme.problem}"
            )
        inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
        return model(**inputs).logits, batch["labels"]

    def evaluate(self, split: str, forward: Forward, folder: Path) -> Evaluation | None:
        if split not in self._splits:
            return None
        data = self._splits[split]
        logits = np.zeros((len(data.features), max(len(self._scheme.classes.names), 1)))
        for indices, output in forward(data.features, self._padding.inputs):
            logits[indices] = output.logits.detach().float().cpu().numpy()
        labelled = is_validation(split) or self._scheme.has_labels(data.examples)
        metrics = self._metrics(logits, data.features) if labelled else {}
        rows = [
            {"row": number, **(self._expected(example) if labelled else {}), **prediction}
            for number, (example, prediction) in enumerate(
                zip(data.examples, self._predictions(logits), strict=True), start=1
            )
        ]
        return Evaluation(
            metrics=metrics,
            files=predictions.write(rows, split, folder),
            samples=predictions.samples(rows, data.examples, "text", "text_pair"),
        )

    def _targets(self, values: list[Any]) -> torch.Tensor:
        dtype = torch.long if self._scheme.problem == SINGLE else torch.float32
        return torch.tensor(values, dtype=dtype)

    def _losses(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """(batch,) losses, computed in float32 even under autocast."""
        logits = logits.float()
        if self._scheme.problem == SINGLE:
            return functional.cross_entropy(logits, targets, reduction="none")
        if self._scheme.problem == REGRESSION:
            return functional.mse_loss(logits[:, 0], targets, reduction="none")
        each = functional.binary_cross_entropy_with_logits(logits, targets, reduction="none")
        return each.mean(dim=1)

    def _metrics(self, logits: Floats, features: Any) -> dict[str, float]:
        targets = self._targets(list(features["labels"]))
        loss = {"loss": float(self._losses(torch.from_numpy(logits), targets).mean())}
        gold = targets.numpy()
        if self._scheme.problem == REGRESSION:
            numbers = gold.astype(np.float64)
            return loss | classification_metrics.regression(numbers, logits[:, 0])
        if self._scheme.problem == SINGLE:
            predicted = logits.argmax(axis=1)
            return loss | classification_metrics.single_label(gold, predicted, logits.shape[1])
        chosen = (logits > 0).astype(np.int64)
        return loss | classification_metrics.multi_label(gold.astype(np.int64), chosen)

    def _predictions(self, logits: Floats) -> Iterator[dict[str, Any]]:
        """The prediction of each row, and the probability of every class."""
        if self._scheme.problem == REGRESSION:
            yield from ({"prediction": number} for number in logits[:, 0].tolist())
            return
        names, outputs = self._scheme.classes.names, torch.from_numpy(logits)
        single = self._scheme.problem == SINGLE
        probabilities = outputs.softmax(dim=1) if single else outputs.sigmoid()
        for row in probabilities.tolist():
            chosen: Any = [
                name for name, probability in zip(names, row, strict=True) if probability > 0.5
            ]
            if single:
                chosen = names[row.index(max(row))]
            yield {"prediction": chosen, "probabilities": dict(zip(names, row, strict=True))}

    def _expected(self, example: Mapping[str, Any]) -> dict[str, Any]:
        if self._scheme.problem == REGRESSION:
            return {"label": example["number"]}
        names = example["labels"]
        return {"label": names if self._scheme.problem == MULTI else names[0]}
