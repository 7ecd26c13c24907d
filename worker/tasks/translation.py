"""Translation: a text and the same in another language, scored with BLEU."""

from collections.abc import Mapping, Sequence
from typing import Any

from service.contract.failures import FailureCode
from service.contract.seq2seq import TranslationSpec
from worker.tasks.base import Cleaner, Row, RowError
from worker.tasks.rows import text_of
from worker.tasks.seq2seq import Languages, Seq2Seq, check_split, required_targets


class Translation(Seq2Seq):
    name = "translation"

    def required_columns(self, split: str) -> tuple[str, ...]:  # noqa: ARG002
        return ()  # one of two forms, which the cleaner looks for

    def cleaner(self, split: str, parameters: TranslationSpec) -> Cleaner:
        check_split(split, parameters)

        def clean(row: Row) -> dict[str, Any]:
            pair = _pair(row, parameters)
            target = ""
            if required_targets(split):
                target = text_of(_given(pair, "target"), "target")
            return {"source": text_of(_given(pair, "source"), "source"), "target": target}

        return clean

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


def _pair(row: Row, parameters: TranslationSpec) -> Row:
    """`row` itself, or the two languages out of {"translation": {"en": …, "ro": …}}."""
    texts = row.get("translation")
    if texts is None:
        return row
    if not isinstance(texts, Mapping):
        raise RowError("`translation` must be an object of languages and texts")
    languages = {"source": parameters.source_lang, "target": parameters.target_lang}
    found = {}
    for side, code in languages.items():
        if code is None:
            raise RowError(
                f"which of {', '.join(sorted(texts))} is the {side}? Set `task.{side}_lang`",
                FailureCode.INVALID_OPTION,
            )
        # Rows say `en` where tokenizers say `en_XX`.
        key = code if code in texts else code.split("_")[0]
        if key in texts:
            found[side] = texts[key]
    return found


def _given(pair: Row, side: str) -> Any:
    if side not in pair:
        raise RowError(
            f"has no {side}: give the columns `source` and `target`, or `translation` with both "
            "languages",
            FailureCode.MISSING_COLUMN,
        )
    return pair[side]
