"""The common parts of summarization and translation: features, loss, generation."""

import copy
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from transformers import GenerationConfig

from service.contract.failures import FailureCode, StageError
from service.contract.spec.peft import PrefixTuningSpec
from service.contract.spec.spec import JobSpec
from service.contract.spec.splits import TRAIN, VALIDATION
from service.contract.stage.events import Notice
from service.contract.tasks.seq2seq import Seq2SeqSpec
from worker.data.report import Measures
from worker.failures import invalid_option
from worker.tasks import describe
from worker.tasks.base import PrepareContext, PreparedSplit, Task, parameters_of, train_features
from worker.tasks.common import feature_file, generation, predictions, token_scores
from worker.tasks.common.padding import pad
from worker.tasks.describe import Describer
from worker.tasks.seq2seq.rows import requires_targets
from worker.training import build
from worker.training.loss import auxiliary_loss, chunked_cross_entropy, label_smoothing
from worker.training.objective import Batch, Evaluation, Features, Forward, LossSum, Objective

IGNORED: Final = token_scores.IGNORED
_FORMAT_VERSION: Final = 2  # of the features; a new version prepares data again

Metrics = Callable[[Sequence[str], Sequence[str]], dict[str, float]]
"""(generated texts, references) → metrics."""


@dataclass(frozen=True)
class Languages:
    """The languages for a multilingual tokenizer and its model; None if not given."""

    source: str | None
    target: str | None
    sources_option: str
    targets_option: str


class Seq2Seq(Task):
    """What does not depend on the columns."""

    length_option = "max_source_length"
    auto_class = "AutoModelForSeq2SeqLM"

    def target(self, describer: Describer, feature: Mapping[str, Any]) -> str:
        written = [token for token in feature["labels"] if token >= 0]
        return f"text: {describer.text(written)}"

    def trained_count(self, describer: Describer, feature: Mapping[str, Any]) -> float:  # noqa: ARG002
        return sum(describe.labelled(feature))

    def example_schema(self) -> Any:
        from datasets import Features, Value

        return Features({"source": Value("large_string"), "target": Value("large_string")})

    def languages(self, parameters: Any) -> Languages:
        raise NotImplementedError

    def metrics(self, predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        raise NotImplementedError

    def tokenization_settings(self, parameters: Any) -> Mapping[str, Any]:
        languages = self.languages(parameters)
        return {
            "format": _FORMAT_VERSION,
            "max_source_length": parameters.max_source_length,
            "target_lengths": [parameters.target_length(split) for split in (TRAIN, VALIDATION)],
            "source_prefix": parameters.source_prefix,
            "languages": [languages.source, languages.target],
        }

    def prepare(self, split: str, examples: Any, context: PrepareContext, target: Path) -> int:
        from datasets import List, Value

        parameters = parameters_of(context.spec, Seq2SeqSpec)
        peft = context.spec.peft
        # Prefix tuning also takes positions of the decoder; prompt tuning only of the encoder.
        prefix = peft.num_virtual_tokens if isinstance(peft, PrefixTuningSpec) else 0
        _check_decoder(context.config, parameters, prefix)
        set_languages(context.tokenizer, self.languages(parameters))
        pairs = _Pairs(context.tokenizer, parameters, split, context.measures)
        schema = {"input_ids": List(Value("int32")), "labels": List(Value("int32"))}

        def columns(_first: int, rows: Mapping[str, Any]) -> Mapping[str, Any]:
            return pairs.features(rows["source"], rows["target"])

        count = feature_file.write(examples, columns, schema, context, target)
        context.measures.windows = Counter({1: count})
        for notice in pairs.notices():
            context.notice(notice)
        return count

    def bind(
        self, spec: JobSpec, tokenizer: Any, model: Any, splits: Mapping[str, PreparedSplit]
    ) -> "Seq2SeqObjective":
        parameters = parameters_of(spec, Seq2SeqSpec)
        languages = self.languages(parameters)
        set_languages(tokenizer, languages)
        _set_first_tokens(model, tokenizer, parameters, languages)
        linear = chunked_cross_entropy.plain_head(model) if build.may_capture_head(spec) else None
        return Seq2SeqObjective(spec, tokenizer, model, splits, self.metrics, linear)


def _check_decoder(config: Any, parameters: Seq2SeqSpec, reserved: int) -> None:
    """Check the length of targets; that of sources is checked as in any other task."""
    names = ("max_decoder_position_embeddings", "max_position_embeddings")
    limit = next((getattr(config, name) for name in names if hasattr(config, name)), None)
    lengths = {
        "max_target_length": parameters.max_target_length,
        "val_max_target_length": parameters.target_length(VALIDATION),
        "generation_max_length": parameters.generated_length(),
    }
    for option, length in lengths.items():
        if limit is not None and length + reserved > limit:
            raise StageError(
                FailureCode.SEQUENCE_TOO_LONG,
                f"`{option}` is {length}, but the model's decoder holds {limit} positions"
                + (f", {reserved} of them for virtual tokens" if reserved else ""),
                action=f"Lower `task.{option}` to at most {limit - reserved}, then submit again.",
                limit=limit,
                **{option: length},
            )


# ---- languages and first tokens -----------------------------------------------------------------


def set_languages(tokenizer: Any, languages: Languages) -> None:
    """Set the languages of a multilingual tokenizer. Raises StageError if they are missing."""
    if not hasattr(tokenizer, "src_lang"):
        return
    given = {
        languages.sources_option: languages.source,
        languages.targets_option: languages.target,
    }
    for option, code in given.items():
        if code is None:
            raise invalid_option(
                option, f"is required: {type(tokenizer).__name__} needs the language of each text"
            )
        _known_token(tokenizer, option, code)
    tokenizer.src_lang, tokenizer.tgt_lang = languages.source, languages.target


def _set_first_tokens(
    model: Any, tokenizer: Any, parameters: Seq2SeqSpec, languages: Languages
) -> None:
    """Set the decoder's start token and the forced first token of generated texts.

    Both are set in the model, so that the finished model generates in the same way.
    """
    forced = parameters.forced_bos_token
    if forced is not None:
        token = _known_token(tokenizer, "task.forced_bos_token", forced)
        model.generation_config.forced_bos_token_id = token
    if getattr(model.config, "decoder_start_token_id", None) is None:
        if not hasattr(tokenizer, "src_lang"):
            raise StageError(
                FailureCode.UNSUPPORTED_ARCHITECTURE,
                "The model's config has no `decoder_start_token_id`, which the decoder needs: "
                "add it to the config or choose another model",
            )
        start = _known_token(tokenizer, languages.targets_option, str(languages.target))
        model.config.decoder_start_token_id = start
        model.generation_config.decoder_start_token_id = start


def _known_token(tokenizer: Any, option: str, token: str) -> int:
    number = tokenizer.convert_tokens_to_ids(token)
    if number is None or (number == tokenizer.unk_token_id and token != tokenizer.unk_token):
        raise invalid_option(option, f"is {token!r}, which the tokenizer does not know")
    return int(number)


# ---- features -----------------------------------------------------------------------------------


class _Pairs:
    """Tokenizes the texts of a split; counts those it cuts."""

    def __init__(
        self, tokenizer: Any, parameters: Seq2SeqSpec, split: str, measures: Measures
    ) -> None:
        self._tokenizer = tokenizer
        self._prefix = parameters.source_prefix
        self._split = split
        self._limits = {
            "source": parameters.max_source_length,
            "target": parameters.target_length(split),
        }
        self._lengths = {"source": measures.tokens, "target": measures.target_tokens}

    def features(self, sources: Sequence[str], targets: Sequence[str]) -> dict[str, Any]:
        labels = self._encode("target", text_target=list(targets))
        inputs = self._encode("source", text=[self._prefix + source for source in sources])
        return {"input_ids": inputs, "labels": labels}

    def notices(self) -> list[Notice]:
        options = {
            "source": "max_source_length",
            "target": "max_target_length" if self._split == TRAIN else "val_max_target_length",
        }
        return [
            Notice(
                message=f"{count} {side}s of the {self._split} split were cut to "
                f"{self._limits[side]} tokens. Raise `{options[side]}` to keep them whole.",
                data={"split": self._split, f"{side}s": count},
            )
            for side, lengths in self._lengths.items()
            if (count := lengths.truncated)
        ]

    def _encode(self, side: str, **texts: list[str]) -> list[list[int]]:
        limit = self._limits[side]
        ids = self._ids(limit, **texts)

        def whole(numbers: list[int]) -> list[list[int]]:
            return self._ids(None, **{n: [rows[i] for i in numbers] for n, rows in texts.items()})

        feature_file.measure(self._lengths[side], ids, limit, whole)
        return ids

    def _ids(self, limit: int | None, **texts: list[str]) -> list[list[int]]:
        encoded = self._tokenizer(
            **texts,
            truncation=limit is not None,
            max_length=limit,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )
        ids: list[list[int]] = encoded["input_ids"]
        return ids


# ---- objective ----------------------------------------------------------------------------------


class _Output(NamedTuple):
    """Results of one evaluated batch: (n,) loss sums and label counts, (n, length) tokens."""

    losses: torch.Tensor | None
    labels: torch.Tensor | None
    tokens: torch.Tensor | None


class Seq2SeqObjective(Objective):
    def __init__(
        self,
        spec: JobSpec,
        tokenizer: Any,
        model: Any,
        splits: Mapping[str, PreparedSplit],
        metrics: Metrics,
        linear: torch.nn.Linear | None = None,
    ) -> None:
        """`linear`: the head of the bare `model` if the loss can be computed from the head's input,
        else None."""
        self._bare_model = model
        self._parameters = parameters_of(spec, Seq2SeqSpec)
        self._tokenizer = tokenizer
        self._splits = splits
        self._metrics = metrics
        # Architectures without this method shift the labels in their forward pass,
        self._shift = getattr(model, "prepare_decoder_input_ids_from_labels", None)
        # and then the loss needs the model's own logits.
        self.linear = None if self._shift is None else linear
        self.auxiliary = auxiliary_loss.find(model, self.linear)
        if self.auxiliary.needs_logits:
            self.linear = None
        self._label_pad = tokenizer.pad_token_id
        if self._parameters.ignore_pad_token_for_loss:
            self._label_pad = IGNORED
        self._generation = generation_config(model.generation_config, self._parameters)
        self.train_features: Features = train_features(splits)

    def collate(self, features: list[Mapping[str, Any]]) -> Batch:
        """Sources padded on the tokenizer's side, targets and decoder inputs on the right."""
        batch = self._collate_sources(features)
        rows = [feature["labels"] for feature in features]
        batch["labels"] = labels = pad(rows, self._label_pad)
        if self._shift is not None:
            batch["decoder_input_ids"] = self._shift(labels=labels)
        return batch

    def item_count(self, batch: Batch) -> int:
        return int((batch["labels"] != IGNORED).sum())

    def loss_sum(
        self, model: torch.nn.Module, batch: Batch, smoothing: float = 0.0
    ) -> torch.Tensor:
        """Without the logits of the whole batch if possible."""
        linear = chunked_cross_entropy.current_head(self._bare_model, self.linear)
        if linear is None:
            return label_smoothing.cross_entropies(*self.logits_and_labels(model, batch), smoothing)
        head = self._head_input(model, batch)
        return chunked_cross_entropy.loss_sum(linear, head, batch["labels"], smoothing, self.rows)

    def smoothed(self, factor: float) -> LossSum:
        return partial(self.loss_sum, smoothing=factor)

    def logits_and_labels(
        self, model: torch.nn.Module, batch: Batch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self._logits(model, batch), batch["labels"]

    def evaluate(self, split: str, forward: Forward, folder: Path) -> Evaluation | None:
        if split not in self._splits:
            return None
        data = self._splits[split]
        with_labels = requires_targets(split) or all(data.examples["target"])
        collate = self.collate if with_labels else self._collate_sources
        collected = _Collected(len(data.features))
        generates = self._parameters.predict_with_generate
        scored = self.auxiliary.scored(forward)
        run = scored if with_labels else forward
        for indices, output in run(data.features, collate, self._run, generates=generates):
            collected.add(indices, output)
        metrics = scored.added({"loss": collected.mean_loss()}) if with_labels else {}
        if not self._parameters.predict_with_generate:
            return Evaluation(metrics)
        written = [self._written(row) for row in collected.tokens]
        texts = self._texts(written)
        references = self._texts(data.features["labels"])
        if with_labels:
            metrics |= self._metrics(texts, references)
            fill = self._tokenizer.pad_token_id
            metrics["gen_len"] = float(np.mean([sum(t != fill for t in row) for row in written]))
        rows: list[dict[str, Any]] = [{"prediction": text} for text in texts]
        if with_labels:
            rows = [
                {**row, "reference": reference}
                for row, reference in zip(rows, references, strict=True)
            ]
        return Evaluation(
            metrics=metrics,
            files=predictions.write(rows, split, folder)
            | predictions.write_lines(texts, split, folder),
            samples=predictions.samples(rows, data.examples, "source"),
        )

    def _run(self, model: torch.nn.Module, batch: Batch) -> _Output:
        """The losses of a batch with labels, and the generated tokens."""
        losses = labels = tokens = None
        if "labels" in batch:
            losses = self._token_losses(model, batch).sum(dim=1)
            labels = (batch["labels"] != IGNORED).sum(dim=1)
        if self._parameters.predict_with_generate:
            generate: Any = model.generate
            tokens = generate(
                input_ids=batch["input_ids"],
                attention_mask=batch["attention_mask"],
                generation_config=self._generation,
            )
        return _Output(losses, labels, tokens)

    def _token_losses(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        """(batch, target length) cross entropies in float32; 0 where there is no label."""
        linear = chunked_cross_entropy.current_head(self._bare_model, self.linear)
        if linear is None:
            return token_scores.losses(*self.logits_and_labels(model, batch))

        def per_token(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor]:
            return (token_scores.losses(logits, labels),)

        head = self._head_input(model, batch)
        (losses,) = chunked_cross_entropy.map_chunks(
            linear, head, batch["labels"], per_token, self.rows
        )
        return losses

    def _head_input(self, model: torch.nn.Module, batch: Batch) -> chunked_cross_entropy.HeadInput:
        return chunked_cross_entropy.head_input(
            self._bare_model, lambda: self._logits(model, batch)
        )

    def _logits(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        """(batch, target length, vocabulary) logits."""
        inputs = dict(batch)
        if "decoder_input_ids" in inputs:  # else the model shifts the labels itself
            del inputs["labels"]
        output = self.auxiliary.call(model, {**inputs, "use_cache": False}, batch["labels"])
        logits: torch.Tensor = output.logits
        return logits

    def _collate_sources(self, features: list[Mapping[str, Any]]) -> Batch:
        rows = [feature["input_ids"] for feature in features]
        left = self._tokenizer.padding_side == "left"
        return {
            "input_ids": pad(rows, self._tokenizer.pad_token_id, left=left),
            "attention_mask": pad([[1] * len(row) for row in rows], 0, left=left),
        }

    def _texts(self, tokens: Sequence[Sequence[int]]) -> list[str]:
        decoded = self._tokenizer.batch_decode(list(tokens), skip_special_tokens=True)
        return [text.strip() for text in decoded]

    def _written(self, tokens: Sequence[int]) -> Sequence[int]:
        """Up to the token that ends the text. The first token is where the decoder starts, which
        in some models is the end token."""
        return tokens[: generation.first_end(tokens, self._generation, start=1) + 1]


def generation_config(base: GenerationConfig, parameters: Seq2SeqSpec) -> GenerationConfig:
    """The model's generation config with the options of the job."""
    config = copy.deepcopy(base)
    given = parameters.generation.model_dump(exclude_none=True)
    if parameters.num_beams is not None:
        given["num_beams"] = parameters.num_beams
    config.update(**given, max_length=parameters.generated_length(), max_new_tokens=None)
    return config


class _Collected:
    """Collects results by example, in whichever order batches arrive."""

    def __init__(self, count: int) -> None:
        self._losses = np.zeros(count)
        self._labels = np.zeros(count, dtype=np.int64)
        self.tokens: list[list[int]] = [[] for _ in range(count)]

    def add(self, indices: list[int], output: _Output) -> None:
        if output.losses is not None and output.labels is not None:
            self._losses[indices] = output.losses.double().cpu().numpy()
            self._labels[indices] = output.labels.cpu().numpy()
        if output.tokens is not None:
            for index, tokens in zip(indices, output.tokens.tolist(), strict=True):
                self.tokens[index] = tokens

    def mean_loss(self) -> float:
        """The mean over all labels of the split."""
        return float(self._losses.sum() / self._labels.sum())
