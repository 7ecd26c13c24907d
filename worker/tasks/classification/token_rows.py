"""Cleans the rows of token-classification data sets."""

from typing import Any

from service.contract.spec.splits import TEST
from service.contract.tasks.parameters import TokenClassificationSpec
from worker.data.table import Row, RowError
from worker.tasks.classification import labels
from worker.tasks.common.cells import any_text


class RowCleaner:
    def __init__(self, split: str, parameters: TokenClassificationSpec) -> None:
        self._is_test = split == TEST
        self._names = parameters.label_names
        self.counts: dict[str, int] = {}

    def __call__(self, row: Row) -> dict[str, Any]:
        tokens = [any_text(token, "tokens") for token in _words(row["tokens"], "tokens")]
        if not tokens:
            raise RowError("`tokens` is empty", reason="empty_text")
        try:
            tags = self._tags(row.get("tags"), len(tokens))
        except RowError:
            if not self._is_test:
                raise
            tags = []  # rows to predict need none
        if None in tags:
            found = self.counts.get("words_without_a_label", 0)
            self.counts["words_without_a_label"] = found + tags.count(None)
        return {"tokens": tokens, "tags": tags}

    def _tags(self, value: Any, count: int) -> list[str | None]:
        """None for a word whose tag is the mark for what is not labelled, unless a label has the
        name."""
        tags = [self._tag(tag) for tag in _words(value, "tags")]
        if len(tags) != count:
            problem = f"the row has {count} `tokens`, but {len(tags)} `tags`"
            raise RowError(problem, reason="length_mismatch")
        return tags

    def _tag(self, value: Any) -> str | None:
        is_mark = str(value).strip() in (labels.IGNORED, f"{labels.IGNORED}.0")
        if is_mark and labels.IGNORED not in (self._names or ()):
            return None
        return labels.class_name(value, "tags", self._names)


def _words(value: Any, column: str) -> list[Any]:
    """A list; or a cell of a CSV file, with a list as JSON text or with words between spaces."""
    if isinstance(value, str) and not value.lstrip().startswith("["):
        return value.split()
    return labels.as_list(value, column)
