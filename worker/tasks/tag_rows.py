"""What a row of a token-classification data set must look like."""

from typing import Any

from service.contract.parameters import TokenClassificationSpec
from worker.data.table import Row, RowError
from worker.tasks import labels
from worker.tasks.rows import any_text


class RowCleaner:
    def __init__(self, split: str, parameters: TokenClassificationSpec) -> None:
        self._labelled = split != "test"
        self._names = parameters.label_names

    def __call__(self, row: Row) -> dict[str, Any]:
        tokens = [any_text(token, "tokens") for token in labels.as_list(row["tokens"], "tokens")]
        if not tokens:
            raise RowError("`tokens` is empty", reason="empty_text")
        if not self._labelled:
            return {"tokens": tokens, "tags": []}
        tags = [
            labels.named(tag, "tags", self._names) for tag in labels.as_list(row["tags"], "tags")
        ]
        if len(tags) != len(tokens):
            problem = f"there are {len(tokens)} `tokens`, but {len(tags)} `tags`"
            raise RowError(problem, reason="length_mismatch")
        return {"tokens": tokens, "tags": tags}
