"""What a row of a summarization or translation data set must look like: a source, a target."""

from collections.abc import Mapping
from typing import Any

from service.contract.failures import FailureCode, StageError
from service.contract.seq2seq import Seq2SeqSpec, SummarizationSpec, TranslationSpec
from service.contract.splits import TEST
from worker.data.table import Cleaner, Row, RowError
from worker.tasks.common.cells import text_of


def required_targets(split: str) -> bool:
    """Predictions need no references."""
    return split != TEST


def summarization(split: str, parameters: SummarizationSpec) -> Cleaner:
    _check_split(split, parameters)

    def clean(row: Row) -> dict[str, Any]:
        summary = _target_of(split, row.get("summary"), "summary")
        return {"source": text_of(row["text"], "text"), "target": summary}

    return clean


def translation(split: str, parameters: TranslationSpec) -> Cleaner:
    _check_split(split, parameters)

    def clean(row: Row) -> dict[str, Any]:
        pair = _pair(row, parameters)
        target = _given(pair, "target") if required_targets(split) else pair.get("target")
        target = _target_of(split, target, "target")
        return {"source": text_of(_given(pair, "source"), "source"), "target": target}

    return clean


def _target_of(split: str, value: Any, column: str) -> str:
    """The target of a row. RowError if there is none; of the test split it is then empty."""
    try:
        return text_of(value, column)
    except RowError:
        if required_targets(split):
            raise
        return ""


def _check_split(split: str, parameters: Seq2SeqSpec) -> None:
    """StageError for a test split of which nothing would be predicted."""
    if split == TEST and not parameters.predict_with_generate:
        raise StageError(
            FailureCode.INVALID_OPTION,
            "`dataset.test` is given, but `task.predict_with_generate` is false: nothing would be "
            "predicted",
            option="task.predict_with_generate",
        )


def _pair(row: Row, parameters: TranslationSpec) -> Row:
    """`row` itself, or the two languages out of {"translation": {"en": …, "ro": …}}."""
    texts = row.get("translation")
    if texts is None:
        return row
    if not isinstance(texts, Mapping):
        raise RowError(
            "`translation` must be an object of languages and texts", reason="not_an_object"
        )
    languages = {"source": parameters.source_lang, "target": parameters.target_lang}
    found = {}
    for side, code in languages.items():
        if code is None:
            raise RowError(
                f"which of {', '.join(sorted(texts))} is the {side}? Set `task.{side}_lang`",
                FailureCode.INVALID_OPTION,
                reason="language_not_set",
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
            reason="missing_value",
        )
    return pair[side]
