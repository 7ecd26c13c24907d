"""Features of language models: blocks of equal size, or one feature per row."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from service.contract.failures import FailureCode, StageError
from service.contract.stage.events import Notice
from worker.tasks.base import PrepareContext
from worker.tasks.common import row_batches

FORMAT_VERSION: Final = 1  # of the features; a new version prepares data again
DEFAULT_LENGTH: Final = 1024
_ROWS_AT_ONCE: Final = 1000

Starts = Literal["rows", "words"]
"""Whether `starts` of a feature is 1 at the first token of each row or of each word."""
Ids = npt.NDArray[np.int32]
Flags = npt.NDArray[np.int8]


@dataclass(frozen=True)
class Tokens:
    ids: Ids
    starts: Flags | None
    """As long as `ids`; None if not requested."""


def example_schema() -> Any:
    from datasets import Features, Value

    return Features({"text": Value("large_string")})


class Grouping:
    """Concatenates the tokens of all rows and cuts them into blocks of `size`."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._ids: Ids = np.empty(0, dtype=np.int32)
        self._starts: Flags | None = None
        self.tokens = 0

    @property
    def dropped(self) -> int:
        """The number of tokens that are in no block, once all rows are added."""
        return len(self._ids)

    def add(self, rows: list[Tokens]) -> list[Tokens]:
        """Add rows and return the blocks that are now complete."""
        self.tokens += sum(len(row.ids) for row in rows)
        ids = np.concatenate([self._ids, *(row.ids for row in rows)])
        starts = _joined(self._starts, rows)
        whole = len(ids) // self._size * self._size
        self._ids, self._starts = ids[whole:], None if starts is None else starts[whole:]
        blocks = [slice(at, at + self._size) for at in range(0, whole, self._size)]
        return [Tokens(ids[own], None if starts is None else starts[own]) for own in blocks]


def _joined(before: Flags | None, rows: list[Tokens]) -> Flags | None:
    parts = [part for part in (before, *(row.starts for row in rows)) if part is not None]
    return np.concatenate(parts) if parts else None


class SplitTokenizer:
    """Tokenizes the texts of a split, with the special tokens that the tokenizer adds."""

    def __init__(self, context: PrepareContext, starts: Starts | None) -> None:
        self._tokenizer = context.tokenizer
        self._progress = context.progress
        self._lengths = context.measures.tokens
        self._starts = starts

    def __call__(self, examples: Any) -> Iterator[list[Tokens]]:
        """The tokens of all rows, in batches of rows."""
        for begin, end in row_batches.ranges(examples, _ROWS_AT_ONCE):
            texts = examples[begin:end]["text"]
            tokens = self._tokens(texts)
            self._lengths.add(len(each.ids) for each in tokens)
            yield tokens
            self._progress(end, len(examples))

    def truncated(self, text: str, length: int) -> Tokens:
        """The first `length` tokens, including special tokens."""
        return self._tokens([text], truncation=True, max_length=length)[0]

    def _tokens(self, texts: list[str], **options: Any) -> list[Tokens]:
        encoded = self._tokenizer(
            texts,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,  # no warnings about long texts
            **options,
        )
        return [
            Tokens(np.asarray(ids, dtype=np.int32), self._flags(encoded, row, len(ids)))
            for row, ids in enumerate(encoded["input_ids"])
        ]

    def _flags(self, encoded: Any, row: int, length: int) -> Flags | None:
        if self._starts is None:
            return None
        if self._starts == "words":
            # 1 where the word changes; each special token, -1, is a word of its own.
            words = np.array([-1 if word is None else word for word in encoded.word_ids(row)])
            before = np.concatenate([[-1], words[:-1]])
            flags: Flags = ((words != before) | (words == -1)).astype(np.int8)
            return flags
        flags = np.zeros(length, dtype=np.int8)
        flags[:1] = 1
        return flags


def write_blocks(
    split: str, examples: Any, context: PrepareContext, target: Path, starts: Starts | None
) -> int:
    """Write blocks of `context.max_length` tokens; report the rest that does not fill a block."""
    grouping = Grouping(context.max_length)
    batches = (grouping.add(rows) for rows in SplitTokenizer(context, starts)(examples))
    count = write_features(target, (map(feature, blocks) for blocks in batches), starts=starts)
    if count == 0:
        raise StageError(
            FailureCode.EMPTY_DATASET,
            f"The {split} split has {grouping.tokens} tokens, fewer than one block of "
            f"{context.max_length}: provide more text or use smaller blocks",
            split=split,
            tokens=grouping.tokens,
        )
    context.counts.update(tokens=grouping.tokens, dropped_tokens=grouping.dropped)
    if grouping.dropped:
        message = f"they do not fill a block of {context.max_length}"
        context.notice(_dropped(split, grouping.dropped, grouping.tokens, message))
    return count


def write_lines(
    split: str, examples: Any, context: PrepareContext, target: Path, starts: Starts | None
) -> int:
    """Write one feature per non-empty row, cut to `context.max_length`; report dropped tokens."""
    lines = _Lines(context, starts)
    count = write_features(target, lines.features(examples), starts=starts, with_rows=True)
    if count == 0:
        raise StageError(
            FailureCode.EMPTY_DATASET, f"All rows of the {split} split are empty", split=split
        )
    context.counts.update(tokens=lines.tokens, dropped_tokens=lines.dropped, empty_rows=lines.empty)
    context.measures.tokens.truncated = lines.cut
    context.measures.windows = Counter({1: count}) + Counter({0: lines.empty})
    if lines.dropped:
        message = f"rows are cut to {context.max_length} tokens"
        context.notice(_dropped(split, lines.dropped, lines.tokens, message))
    return count


class _Lines:
    """Turns rows into features and counts tokens and rows."""

    def __init__(self, context: PrepareContext, starts: Starts | None) -> None:
        self._split_tokenizer = SplitTokenizer(context, starts)
        self._length = context.max_length
        self.tokens, self.dropped, self.empty, self.cut = 0, 0, 0, 0

    def features(self, examples: Any) -> Iterator[list[dict[str, Any]]]:
        row = -1
        for batch in self._split_tokenizer(examples):
            features = []
            for tokens in batch:
                row += 1
                text = examples[row]["text"]
                if text.strip():
                    features.append({**feature(self._truncated(text, tokens)), "row": row})
                else:
                    self.empty += 1
            yield features

    def _truncated(self, text: str, tokens: Tokens) -> Tokens:
        self.tokens += len(tokens.ids)
        over = len(tokens.ids) - self._length
        if over <= 0:
            return tokens
        self.dropped += over
        self.cut += 1
        return self._split_tokenizer.truncated(text, self._length)


def feature(tokens: Tokens) -> dict[str, Any]:
    found: dict[str, Any] = {"input_ids": tokens.ids}
    return found if tokens.starts is None else {**found, "starts": tokens.starts}


def write_features(
    target: Path,
    batches: Iterator[Any],
    *,
    starts: Starts | None = None,
    with_rows: bool = False,
) -> int:
    """Write features to the Arrow file `target` and return their number."""
    from datasets import Features, List, Value
    from datasets.arrow_writer import ArrowWriter

    schema: dict[str, Any] = {"input_ids": List(Value("int32"))}
    schema |= {"starts": List(Value("int8"))} if starts is not None else {}
    schema |= {"row": Value("int64")} if with_rows else {}
    with ArrowWriter(path=str(target), features=Features(schema)) as writer:
        for batch in batches:
            features = list(batch)
            if features:
                writer.write_batch({name: [each[name] for each in features] for name in schema})
        count, _bytes = writer.finalize()
    return int(count)


def _dropped(split: str, dropped: int, tokens: int, why: str) -> Notice:
    return Notice(
        message=f"{dropped:,} of {tokens:,} tokens of the {split} split are not used: {why}",
        data={"split": split, "dropped_tokens": dropped, "tokens": tokens},
    )
