"""Features of whole rows, for `packing: bfd`: no row is joined to another, and no token is lost."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from service.contract.failures import FailureCode, StageError
from service.contract.spec.splits import TRAIN
from worker.tasks.base import PrepareContext
from worker.tasks.common import sequence_features
from worker.tasks.common.list_columns import ListColumns
from worker.tasks.language_modeling.features import SplitTokenizer, Tokens, feature, write_features


def write(split: str, examples: Any, context: PrepareContext, target: Path) -> int:
    """Write the rows as sequences of at most `context.max_length` tokens; a longer row is continued
    in further ones. Those of the training split are packed by best-fit decreasing; in the others
    each is a feature, so that it has metrics of its own."""
    import datasets

    rows = _Rows(context)
    if split == TRAIN:
        unpacked = target.with_suffix(".unpacked")
        try:
            write_features(unpacked, rows.sequences(examples))
            columns = ListColumns(datasets.Dataset.from_file(str(unpacked)), ["input_ids"])
            count = sequence_features.write_packed(columns, context.max_length, context, target)
        finally:
            unpacked.unlink(missing_ok=True)
    else:
        count = write_features(target, rows.sequences(examples), with_rows=True)
    if count == 0:
        raise StageError(
            FailureCode.EMPTY_DATASET, f"All rows of the {split} split are empty", split=split
        )
    context.counts.update(
        tokens=rows.tokens, dropped_tokens=0, sequences=rows.written, continued_rows=rows.continued
    )
    return count


class _Rows:
    """Turns rows into sequences and counts both."""

    def __init__(self, context: PrepareContext) -> None:
        self._tokenize = SplitTokenizer(context, None)
        self._length = context.max_length
        self.tokens, self.written, self.continued = 0, 0, 0

    def sequences(self, examples: Any) -> Iterator[list[dict[str, Any]]]:
        row = -1
        for batch in self._tokenize(examples):
            found = []
            for tokens in batch:
                row += 1
                found += [{**feature(part), "row": row} for part in self._parts(tokens)]
            self.written += len(found)
            yield found

    def _parts(self, tokens: Tokens) -> list[Tokens]:
        self.tokens += len(tokens.ids)
        starts = range(0, len(tokens.ids), self._length)
        self.continued += len(starts) > 1
        return [Tokens(tokens.ids[at : at + self._length], None) for at in starts]
