"""Cleans the rows of token-classification data sets."""

from typing import Any

from service.contract.parameters import TokenClassificationSpec
from service.contract.splits import TEST
from worker.data.table import Row, RowError
from worker.tasks.classification import labels
from worker.tasks.common.cells import any_text


class RowCleaner:
    def __init__(self, split: str, parameters: TokenClassificationSpec) -> None:
        self._is_test = split == TEST
        self._names = parameters.label_names

    def __call__(self, row: Row) -> dict[str, Any]:
        tokens = [any_text(token, "tokens") for token in _words(row["tokens"], "tokens")]
        if not tokens:
            raise RowError("`tokens` is empty", reason="empty_text")
        try:
            return {"tokens": tokens, "tags": self._tags(row.get("tags"), len(tokens))}
        except RowError:
            if not self._is_test:
                raise
            return {"tokens": tokens, "tags": []}  # rows to predict need none

    def _tags(self, value: Any, count: int) -> list[str]:
        tags = [labels.class_name(tag, "tags", self._names) for tag in _words(value, "tags")]
        if len(tags) != count:
            problem = f"the row has {count} `tokens`, but {len(tags)} `tags`"
            raise RowError(problem, reason="length_mismatch")
        return tags


def _words(value: Any, column: str) -> list[Any]:
    """A list; or a cell of a CSV file, with a list as JSON text or with words between spaces."""
    if isinstance(value, str) and not value.lstrip().startswith("["):
        return value.split()
    return labels.as_list(value, column)
