"""Translation: a text and its translation, scored with BLEU."""

from collections.abc import Sequence

from service.contract.tasks.seq2seq import TranslationSpec
from worker.tasks.seq2seq.base import Languages, Seq2Seq


class Translation(Seq2Seq):
    name = "translation"

    def languages(self, parameters: TranslationSpec) -> Languages:
        return Languages(
            parameters.source_lang,
            parameters.target_lang,
            "task.source_lang",
            "task.target_lang",
        )

    def metrics(self, predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        return {"bleu": bleu(predictions, references)}


def bleu(predictions: Sequence[str], references: Sequence[str]) -> float:
    """sacreBLEU's corpus score, 0 … 100, with its default tokenisation."""
    from sacrebleu import corpus_bleu

    return float(corpus_bleu(list(predictions), [list(references)]).score)
