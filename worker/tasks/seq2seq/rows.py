"""Cleans the rows of summarization and translation data sets."""

from collections.abc import Mapping
from typing import Any

from service.contract.failures import FailureCode, StageError
from service.contract.spec.splits import TEST
from service.contract.tasks.seq2seq import Seq2SeqSpec, SummarizationSpec, TranslationSpec
from worker.data.table import Cleaner, Row, RowError
from worker.tasks.common.cells import text_of


def requires_targets(split: str) -> bool:
    """Whether rows need a target; rows to predict do not."""
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
        target = _required(pair, "target") if requires_targets(split) else pair.get("target")
        target = _target_of(split, target, "target")
        return {"source": text_of(_required(pair, "source"), "source"), "target": target}

    return clean


def _target_of(split: str, value: Any, column: str) -> str:
    """The target of a row. Raises RowError if it is missing; in the test split it may be empty."""
    try:
        return text_of(value, column)
    except RowError:
        if requires_targets(split):
            raise
        return ""


def _check_split(split: str, parameters: Seq2SeqSpec) -> None:
    """Raises StageError for a test split if the job would predict nothing for it."""
    if split == TEST and not parameters.predict_with_generate:
        raise StageError(
            FailureCode.INVALID_OPTION,
            "`dataset.test` is given, but `task.predict_with_generate` is false: set it "
            "to true, or remove `dataset.test`",
            option="task.predict_with_generate",
        )


def _pair(row: Row, parameters: TranslationSpec) -> Row:
    """`row` itself, or source and target from {"translation": {"en": …, "ro": …}}."""
    texts = row.get("translation")
    if texts is None:
        return row
    if not isinstance(texts, Mapping):
        raise RowError(
            "`translation` must be an object with a text per language", reason="not_an_object"
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
        # Rows use `en` for the tokenizer's `en_XX`.
        key = code if code in texts else code.split("_")[0]
        if key in texts:
            found[side] = texts[key]
    return found


def _required(pair: Row, side: str) -> Any:
    if side not in pair:
        raise RowError(
            f"the row has no {side}: give the columns `source` and `target`, or `translation` with "
            "both languages",
            FailureCode.MISSING_COLUMN,
            reason="missing_value",
        )
    return pair[side]
