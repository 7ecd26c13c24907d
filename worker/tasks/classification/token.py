"""Token classification: predict a tag for each word (named entities, parts of speech, spans)."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from service.contract.spec.spec import JobSpec
from service.contract.spec.splits import TEST, is_validation
from service.contract.stage.events import Notice
from service.contract.tasks import metrics as metric_names
from service.contract.tasks.parameters import TokenClassificationSpec
from worker.data.inferences import Inferences
from worker.data.table import Row
from worker.tasks import describe
from worker.tasks.base import (
    PrepareContext,
    PreparedSplit,
    Task,
    parameters_of,
    train_examples,
    train_features,
)
from worker.tasks.classification import labels, span_metrics
from worker.tasks.classification.labels import Classes
from worker.tasks.common import feature_file, predictions
from worker.tasks.common.padding import Padding
from worker.tasks.common.token_loss import TokenLabels
from worker.tasks.common.token_scores import IGNORED, losses
from worker.tasks.describe import Describer
from worker.training.objective import Evaluation, Forward

_FORMAT_VERSION: Final = 3  # of the features; a new version prepares data again


class TokenClassification(Task):
    name = "token-classification"
    length_option = "max_seq_length"
    default_length = 512
    auto_class = "AutoModelForTokenClassification"

    def needs_offsets(self, parameters: TokenClassificationSpec) -> str | None:  # noqa: ARG002
        return "which word each token belongs to, and tags belong to words"

    def target(self, describer: Describer, feature: Mapping[str, Any]) -> list[str | None]:
        names = _classes(describer.spec, describer.train_examples).names
        return [None if label == IGNORED else names[label] for label in feature["labels"]]

    def trained(self, feature: Mapping[str, Any]) -> list[bool]:
        return describe.labelled(feature)

    def example_schema(self) -> Any:
        from datasets import Features, List, Value

        # A tag is null where the word is not labelled.
        return Features({"tokens": List(Value("string")), "tags": List(Value("string"))})

    def tokenization_settings(self, parameters: TokenClassificationSpec) -> Mapping[str, Any]:
        return {
            "format": _FORMAT_VERSION,
            "label_names": labels.settings(parameters.label_names),
            "label_all_tokens": parameters.label_all_tokens,
        }

    def with_labels_of(
        self, parameters: TokenClassificationSpec, config: Any
    ) -> TokenClassificationSpec:
        names = labels.of_model(parameters.label_names, config)
        return parameters.model_copy(update={"label_names": names})

    def config_overrides(
        self, spec: JobSpec, splits: Mapping[str, PreparedSplit]
    ) -> Mapping[str, Any]:
        return _classes(spec, train_examples(splits)).config()

    def reported_metrics(self, spec: JobSpec, examples: Any, train: Any) -> list[str]:
        """Of types that no row of `examples` has, nothing but 0 could be reported."""
        if not span_metrics.is_chunk_scheme(_classes(spec, train).names):
            return ["loss", "accuracy"]
        of_types = span_metrics.names_of_types(labels.counts(examples, "tags"))
        return [*metric_names.names(spec.task), *of_types]

    def label_check(self, spec: JobSpec, examples: Any) -> Callable[[Row], None]:
        classes = _classes(spec, examples)
        return lambda row: classes.require(row["tags"])

    def infer(self, spec: JobSpec, examples: Any, found: Inferences) -> Iterator[Notice]:
        classes = _classes(spec, examples)
        names = parameters_of(spec, TokenClassificationSpec).label_names
        labels.infer_names(names, classes, examples, "tags", found)
        if examples is not None:
            yield from labels.doubtful(classes.names, examples, "tags")

    def prepare(self, split: str, examples: Any, context: PrepareContext, target: Path) -> int:
        from datasets import List, Value

        add_prefix_space(context.tokenizer)
        words = Words(context, _classes(context.spec, context.train_examples))
        numbers = List(Value("int32"))
        inputs = feature_file.inputs(context.tokenizer)
        schema = {**inputs, "labels": numbers, "firsts": numbers}
        columns = partial(words.features, split)
        count = feature_file.write(examples, columns, schema, context, target)
        context.measures.windows = Counter({1: count})
        context.measures.labels = labels.counts(examples, "tags")
        if words.cut:
            message = (
                f"{words.cut:,} words of the {split} split lie beyond {context.max_length:,} "
                "tokens and are not used. Raise `max_seq_length`, or split long rows."
            )
            data = {"split": split, "words": words.cut, "max_seq_length": context.max_length}
            context.notice(Notice(message=message, data=data))
        if words.without_tokens:
            message = (
                f"{words.without_tokens:,} words of the {split} split have no token and are not "
                "used: they are empty, or the tokenizer removes all of their characters (soft "
                "hyphens, zero-width spaces, variation selectors)."
            )
            data = {"split": split, "words_without_tokens": words.without_tokens}
            context.notice(Notice(message=message, data=data))
        return count

    def bind(
        self, spec: JobSpec, tokenizer: Any, model: Any, splits: Mapping[str, PreparedSplit]
    ) -> "TokenClassificationObjective":
        add_prefix_space(tokenizer)  # also saved with the finished model
        classes = _classes(spec, train_examples(splits))
        return TokenClassificationObjective(classes, Padding(tokenizer, model), splits)


def _classes(spec: JobSpec, examples: Any) -> Classes:
    names = parameters_of(spec, TokenClassificationSpec).label_names
    return labels.classes_of(names, examples, "tags")


def add_prefix_space(tokenizer: Any) -> None:
    """Make byte-level tokenizers (RoBERTa, GPT-2) add a space before each word, as in running
    text."""
    from tokenizers.pre_tokenizers import ByteLevel

    splitter = tokenizer.backend_tokenizer.pre_tokenizer
    if isinstance(splitter, ByteLevel):
        splitter.add_prefix_space = True
        tokenizer.add_prefix_space = True  # saved with it


class Words:
    """Rows of words → features; counts the words that did not fit, and those without a token."""

    def __init__(self, context: PrepareContext, classes: Classes) -> None:
        self._tokenizer = context.tokenizer
        self._length = context.max_length
        self._lengths = context.measures.tokens
        self._all = parameters_of(context.spec, TokenClassificationSpec).label_all_tokens
        self._classes = classes
        self._inside = [classes.ids.get(inside_of(n), i) for i, n in enumerate(classes.names)]
        self.cut = 0
        self.without_tokens = 0

    def features(
        self, split: str, _first: int, rows: Mapping[str, Sequence[Any]]
    ) -> dict[str, list[Any]]:
        """`labels` has the class id of each token to train on, `firsts` the index of the
        first token of each word. A row of the test split with an unknown tag has no labels."""
        encoded = self._encode(rows["tokens"])
        uncut_words: dict[int, int] = {}

        def whole(numbers: list[int]) -> Any:
            picked = [rows["tokens"][number] for number in numbers]
            uncut = self._encode(picked, truncation=False)
            for place, number in enumerate(numbers):
                uncut_words[number] = len(first_tokens(uncut.word_ids(place)))
            return uncut["input_ids"]

        feature_file.measure(self._lengths, encoded["input_ids"], self._length, whole)
        columns: dict[str, list[Any]] = {"input_ids": encoded["input_ids"]}
        if "token_type_ids" in encoded:
            columns["token_type_ids"] = encoded["token_type_ids"]
        columns |= {"labels": [], "firsts": []}
        for number, tags in enumerate(rows["tags"]):
            if split == TEST and not _known(tags, self._classes.ids):
                tags = []
            ids = [IGNORED if tag is None else self._classes.ids[tag] for tag in tags]
            word_ids = encoded.word_ids(number)
            firsts = first_tokens(word_ids)
            count = len(rows["tokens"][number])
            columns["firsts"].append([firsts.get(word, -1) for word in range(count)])
            columns["labels"].append(self._labels(word_ids, firsts, ids))
            with_tokens = uncut_words.get(number, len(firsts))
            self.cut += with_tokens - len(firsts)
            self.without_tokens += count - with_tokens
        return columns

    def _encode(self, rows: Sequence[Sequence[str]], *, truncation: bool = True) -> Any:
        return self._tokenizer(
            rows,
            is_split_into_words=True,
            truncation=truncation,
            max_length=self._length if truncation else None,
            padding=False,
            return_attention_mask=False,
            verbose=False,
        )

    def _labels(
        self, word_ids: Sequence[int | None], firsts: Mapping[int, int], ids: Sequence[int]
    ) -> list[int]:
        found = [IGNORED] * len(word_ids)
        for token, word in enumerate(word_ids):
            if word is None or not ids:
                continue
            if firsts[word] == token:
                found[token] = ids[word]
            elif self._all and ids[word] != IGNORED:
                found[token] = self._inside[ids[word]]
        return found


def _known(tags: Sequence[str | None], ids: Mapping[str, int]) -> bool:
    """Whether the model knows each tag; a word may have none."""
    return all(tag is None or tag in ids for tag in tags)


def first_tokens(word_ids: Sequence[int | None]) -> dict[int, int]:
    """Word → its first token."""
    firsts: dict[int, int] = {}
    for token, word in enumerate(word_ids):
        if word is not None:
            firsts.setdefault(word, token)
    return firsts


def inside_of(tag: str) -> str:
    """The tag of the following tokens of the same word: I-X for B-X."""
    return f"I-{tag[2:]}" if tag.startswith("B-") else tag


class TokenClassificationObjective(TokenLabels):
    def __init__(
        self, classes: Classes, padding: Padding, splits: Mapping[str, PreparedSplit]
    ) -> None:
        super().__init__(splits, train_features(splits), padding)
        self._names = classes.names
        self._ids = classes.ids

    def evaluate(self, split: str, forward: Forward, folder: Path) -> Evaluation | None:
        if split not in self._splits:
            return None
        data = self._splits[split]
        found = _Collected(data.features, self._padding)
        for indices, output in forward(data.features, self._padding.inputs):
            found.add(indices, output.logits)
        # None for a word beyond the longest feature.
        guesses = [
            [self._names[number] if number >= 0 else None for number in classes]
            for classes in found.classes
        ]
        metrics = {}
        labelled = is_validation(split) or self._has_labels(data.examples)
        if labelled:
            metrics = {"loss": found.mean_loss(), **self._metrics(data.examples["tags"], guesses)}
        rows = [
            {
                "row": number,
                "tokens": example["tokens"],
                **({"tags": example["tags"]} if labelled else {}),
                "prediction": guess,
                "probabilities": sure,
            }
            for number, (example, guess, sure) in enumerate(
                zip(data.examples, guesses, found.probabilities, strict=True), start=1
            )
        ]
        return Evaluation(
            metrics=metrics,
            files=predictions.write(rows, split, folder),
            samples=predictions.samples(rows, data.examples),
        )

    def _has_labels(self, examples: Any) -> bool:
        """Whether every row of a test split has tags, all known to the model, and any word one."""
        rows = examples["tags"]
        return all(tags and _known(tags, self._ids) for tags in rows) and any(map(any, rows))

    def _metrics(
        self, golds: Sequence[list[str | None]], guesses: Sequence[list[str | None]]
    ) -> dict[str, float]:
        """Metrics over the words that have a tag and a prediction."""
        gold_rows: list[list[str]] = []
        guess_rows: list[list[str]] = []
        for gold, guess in zip(golds, guesses, strict=True):
            pairs = [
                (g, p) for g, p in zip(gold, guess, strict=True) if g is not None and p is not None
            ]
            gold_rows.append([g for g, _ in pairs])
            guess_rows.append([p for _, p in pairs])
        words = list(zip(chain(*gold_rows), chain(*guess_rows), strict=True))
        metrics = {"accuracy": sum(g == p for g, p in words) / max(len(words), 1)}
        if span_metrics.is_chunk_scheme(self._names):
            metrics |= span_metrics.scores(gold_rows, guess_rows)
        return metrics


class _Collected:
    """Collects the losses, and of each word the most likely class and its probability."""

    def __init__(self, features: Any, padding: Padding) -> None:
        self._features = features.select_columns(["labels", "firsts"])
        self._padding = padding
        self._losses = np.zeros(len(features))
        self._counts = np.zeros(len(features), dtype=np.int64)
        self.classes: list[list[int]] = [[] for _ in range(len(features))]
        self.probabilities: list[list[float | None]] = [[] for _ in range(len(features))]

    def add(self, indices: list[int], logits: torch.Tensor) -> None:
        rows = self._features[indices]
        targets = self._padding.pad_rows(rows["labels"], IGNORED).to(logits.device)
        sums = losses(logits, targets).sum(dim=1)
        self._losses[indices] = sums.double().cpu().numpy()
        self._counts[indices] = (targets != IGNORED).sum(dim=1).cpu().numpy()
        most_likely = logits.argmax(dim=-1).cpu().numpy()
        highest = logits.float().softmax(dim=-1).amax(dim=-1).cpu().numpy()
        shifts = self._padding.shifts(rows["labels"])
        for row, index in enumerate(indices):
            firsts, shift = rows["firsts"][row], shifts[row]
            self.classes[index] = [
                int(most_likely[row, shift + first]) if first >= 0 else -1 for first in firsts
            ]
            self.probabilities[index] = [
                float(highest[row, shift + first]) if first >= 0 else None for first in firsts
            ]

    def mean_loss(self) -> float:
        """The mean over all labelled tokens of the split."""
        return float(self._losses.sum() / max(self._counts.sum(), 1))
