"""Question answering with XLNet's head, which predicts ends for each of the best starts.

Training uses the gold start; with v2 a third output predicts whether there is an answer.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers.models.auto.auto_factory import _BaseAutoModelClass, _LazyAutoMapping
from transformers.models.auto.auto_mappings import CONFIG_MAPPING_NAMES

from service.contract.spec.spec import JobSpec
from service.contract.tasks.parameters import QuestionAnsweringSpec
from worker.tasks.base import PreparedSplit, parameters_of
from worker.tasks.question_answering import metrics as qa_metrics
from worker.tasks.question_answering.postprocessing import (
    Answers,
    Floats,
    Integers,
    SpanOptions,
    Spans,
    concatenate,
    nbest_of,
    ranked,
)
from worker.tasks.question_answering.task import (
    QuestionAnswering,
    QuestionAnsweringObjective,
    pad_offsets,
)
from worker.training.objective import Batch, Forward, Objective


class AutoModelForBeamSearchQuestionAnswering(_BaseAutoModelClass):
    """transformers' own Auto class maps XLNet to its span head."""

    _model_mapping: Any = _LazyAutoMapping(
        CONFIG_MAPPING_NAMES, OrderedDict([("xlnet", "XLNetForQuestionAnswering")])
    )


class BeamSearchQuestionAnswering(QuestionAnswering):
    without_head = (
        "Set `task.head` to `span`, or choose a model of type `xlnet`, then submit again."
    )
    offsets_in_training = True  # they show which tokens may be part of an answer
    token_types = True  # XLNet was pretrained with them; its tokenizer returns them only on request

    def auto_model(self) -> Any:
        return AutoModelForBeamSearchQuestionAnswering

    def config_overrides(
        self,
        spec: JobSpec,
        splits: Mapping[str, PreparedSplit],  # noqa: ARG002
    ) -> Mapping[str, Any]:
        starts, ends = parameters_of(spec, QuestionAnsweringSpec).beams()
        return {"start_n_top": starts, "end_n_top": ends}

    def bind(
        self, spec: JobSpec, tokenizer: Any, model: Any, splits: Mapping[str, PreparedSplit]
    ) -> Objective:
        # The head selects this many tokens of every window.
        least = max(parameters_of(spec, QuestionAnsweringSpec).beams())
        return BeamSearchObjective(spec, tokenizer, model, splits, least)


@dataclass(frozen=True)
class Beams:
    """The head's output for `n` windows, with `s` starts and `e` ends."""

    start_scores: Floats
    """(n, s) probabilities."""
    starts: Integers
    """(n, s) token indices within each window."""
    end_scores: Floats
    """(n, s * e)"""
    ends: Integers
    """(n, s * e)"""
    nulls: Floats
    """(n,) higher values mean that an answer is less likely."""


class BeamSearchObjective(QuestionAnsweringObjective):
    def collate(self, features: list[Mapping[str, Any]]) -> Batch:
        """As for the span head, plus `p_mask`: 0 for possible tokens of an answer, else 1."""
        batch = super().collate(features)
        mask = torch.ones(batch["input_ids"].shape)
        nulls = []
        shifts = self._padding.shifts([feature["input_ids"] for feature in features])
        for number, (feature, shift) in enumerate(zip(features, shifts, strict=True)):
            outside = torch.as_tensor(feature["offset_start"]) < 0
            mask[number, shift : shift + len(outside)] = outside.float()
            nulls.append(feature["null_token"] + shift)
        batch["p_mask"] = mask
        batch["cls_index"] = torch.tensor(nulls)
        mask[torch.arange(len(nulls)), batch["cls_index"]] = 0.0
        if self._parameters.version_2_with_negative:
            impossible = batch["start_positions"] == batch["cls_index"]
            batch["is_impossible"] = impossible.float()
        return batch

    def loss_sum(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        """The model's own loss is the mean of its windows' losses."""
        loss: torch.Tensor = model(**batch, use_mems=False).loss
        return loss * self.item_count(batch)

    def _answer(
        self, data: PreparedSplit, forward: Forward, options: SpanOptions, threshold: float
    ) -> tuple[Answers, float]:
        names = ["example", "offset_start", "offset_end"]
        features = data.features.select_columns(names)
        losses, spans = 0.0, []
        nulls = np.full(len(data.examples), np.inf, dtype=np.float32)
        for indices, (loss, output) in forward(data.features, self.collate, self._run):
            losses += float(loss)
            rows = features[indices]
            beams = self._beams(output, rows["offset_start"])
            spans.append(spans_of(beams, indices, rows, options, self._parameters.beams()))
            np.minimum.at(nulls, np.asarray(rows["example"]), beams.nulls)
        questions = data.examples.select_columns(["id", "context"])
        answers = choose(
            questions,
            concatenate(spans),
            nulls if self._parameters.version_2_with_negative else None,
            options,
            threshold,
        )
        return answers, losses / len(data.features)

    def _run(self, model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, Any]:
        labels = ("start_positions", "end_positions", "is_impossible")
        inputs = {name: tensor for name, tensor in batch.items() if name not in labels}
        return self.loss_sum(model, batch), model(**inputs, use_mems=False)

    def _beams(self, output: Any, windows: Sequence[Sequence[int]]) -> Beams:
        shifts = np.asarray(self._padding.shifts(windows))[:, None]

        def floats(tensor: torch.Tensor) -> Floats:
            values: Floats = tensor.float().cpu().numpy()
            return values

        return Beams(
            start_scores=floats(output.start_top_log_probs),
            starts=output.start_top_index.cpu().numpy() - shifts,
            end_scores=floats(output.end_top_log_probs),
            ends=output.end_top_index.cpu().numpy() - shifts,
            nulls=floats(output.cls_logits),
        )

    def _metrics(self, golds: qa_metrics.Golds, answers: Answers) -> dict[str, float]:
        metrics = super()._metrics(golds, answers)
        if not self._parameters.version_2_with_negative:
            return metrics
        # The best thresholds are found on the answers that ignore the null score.
        texts = {key: nbest[0]["text"] if nbest else "" for key, nbest in answers.nbest.items()}
        best = qa_metrics.squad_v2(golds, texts, answers.null_odds)
        return metrics | {name: best[name] for name in best if name.startswith("best_")}


def spans_of(
    beams: Beams,
    indices: Sequence[int],
    rows: Mapping[str, Any],
    options: SpanOptions,
    sizes: tuple[int, int],
) -> Spans:
    """The admissible spans of windows with these `indices`, in the order of their beams."""
    starts, ends = sizes
    shape = (len(indices), starts, ends)
    # The reference scripts read the ends as (starts, ends), though the model lays them out as
    # (ends, starts). To give equal results, this code does the same.
    last, end_score = (values.reshape(shape) for values in (beams.ends, beams.end_scores))
    first = np.broadcast_to(beams.starts[:, :, None], shape)
    start_score = np.broadcast_to(beams.start_scores[:, :, None], shape)
    window = np.broadcast_to(np.arange(len(indices))[:, None, None], shape)
    begins, finishes = (pad_offsets(rows[name]) for name in ("offset_start", "offset_end"))
    inside = (first >= 0) & (last >= 0) & (first < begins.shape[1]) & (last < begins.shape[1])
    begin = begins[window, np.where(inside, first, 0)]
    finish = finishes[window, np.where(inside, last, 0)]
    length = last - first + 1
    keep = inside & (begin >= 0) & (finish >= 0)
    keep &= (length >= 1) & (length <= options.max_answer_length)
    return Spans(
        feature=np.asarray(indices, dtype=np.int64)[window[keep]],
        example=np.asarray(rows["example"], dtype=np.int64)[window[keep]],
        start=begin[keep],
        end=finish[keep],
        start_logit=start_score[keep],
        end_logit=end_score[keep],
    )


def choose(
    questions: Sequence[Mapping[str, str]],
    spans: Spans,
    nulls: Floats | None,
    options: SpanOptions,
    null_threshold: float,
) -> Answers:
    """Answer each question (`id`, `context`) with its best span.

    `nulls`: with v2, the lowest null score of each question's windows. A question whose null score
    exceeds `null_threshold` has no answer.
    """
    ordered, bounds = ranked(spans, len(questions))
    answers = Answers({}, {}, {})
    for index, question in enumerate(questions):
        own = ordered.take(slice(bounds[index], bounds[index + 1]))
        nbest = nbest_of(question["context"], own, None, options.n_best_size)
        key, text = question["id"], nbest[0]["text"] if nbest else ""
        if nulls is not None:
            answers.null_odds[key] = float(nulls[index])
            text = "" if nulls[index] > null_threshold else text
        answers.predictions[key] = text
        answers.nbest[key] = nbest
    return answers
