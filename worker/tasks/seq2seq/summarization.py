"""Summarization: a text and its summary, scored with ROUGE."""

import re
from collections.abc import Sequence
from typing import Final

from service.contract.tasks.seq2seq import SummarizationSpec
from worker.tasks.seq2seq.base import Languages, Seq2Seq

_KINDS: Final = ("rouge1", "rouge2", "rougeL", "rougeLsum")
# After ., ! or ? and closing quotes or brackets, before a possible start of a sentence.
_SENTENCE_END: Final = re.compile(
    r"(?<=[.!?])([\"'\u201d\u2019)\]]*)\s+(?=[\"'\u201c\u2018(\[]?[A-Z0-9])"
)


class Summarization(Seq2Seq):
    name = "summarization"

    def languages(self, parameters: SummarizationSpec) -> Languages:
        return Languages(parameters.lang, parameters.lang, "task.lang", "task.lang")

    def metrics(self, predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        return rouge(predictions, references)


def rouge(predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Mean F-measures of the rouge-score package, in percent, with Porter's stemmer."""
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(list(_KINDS), use_stemmer=True)
    totals = dict.fromkeys(_KINDS, 0.0)
    for prediction, reference in zip(predictions, references, strict=True):
        scores = scorer.score(by_sentence(reference), by_sentence(prediction))
        for kind in _KINDS:
            totals[kind] += scores[kind].fmeasure
    return {kind: 100.0 * total / len(predictions) for kind, total in totals.items()}


def by_sentence(text: str) -> str:
    """Put each sentence on its own line, as ROUGE-Lsum expects."""
    return _SENTENCE_END.sub(r"\1\n", text)
