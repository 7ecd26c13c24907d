"""Features of preferences: the sequences that are compared, one after another.

`input_ids` and `trained`: of all sequences; `lengths`: how many tokens each has. Of a pair these
are the chosen and the rejected answer with their prompt.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from service.contract.events import Notice
from worker.tasks.base import PrepareContext
from worker.tasks.common import feature_file

FORMAT_VERSION: Final = 1  # of the features; a new version prepares data again
_TRUNCATED: Final = "truncated_answers"


def example_schema(cleaned: Mapping[str, Any]) -> Any:
    """The columns of cleaned rows with their tokens."""
    from datasets import Features, List, Value

    tokens = {"input_ids": List(List(Value("int32"))), "start": Value("int32")}
    return Features({**cleaned, **tokens})


def schema() -> dict[str, Any]:
    from datasets import List, Value

    return {
        "input_ids": List(Value("int32")),
        "trained": List(Value("bool")),
        "lengths": List(Value("int32")),
    }


def write_pairs(split: str, examples: Any, context: PrepareContext, target: Path) -> int:
    """One feature for each row, whose answers are cut to `context.max_length` tokens."""
    cut = Cut(context)

    def columns(_first: int, rows: Mapping[str, Any]) -> Mapping[str, Any]:
        pairs = zip(rows["input_ids"], rows["start"], strict=True)
        return joined([[cut(ids, start) for ids in answers] for answers, start in pairs])

    count = feature_file.write(examples, columns, schema(), context, target)
    cut.report(split)
    return count


Part = tuple[Sequence[int], int]
"""The tokens of a sequence, and where its answer starts."""


def joined(features: Sequence[Sequence[Part]]) -> dict[str, Any]:
    """The columns of features, each of some sequences."""
    return {
        "input_ids": [np.concatenate([ids for ids, _ in parts]) for parts in features],
        "trained": [np.concatenate([_trained(part) for part in parts]) for parts in features],
        "lengths": [[len(ids) for ids, _ in parts] for parts in features],
    }


def _trained(part: Part) -> Any:
    ids, start = part
    return np.arange(len(ids)) >= start


class Cut:
    """Cuts sequences at their end, and counts that."""

    def __init__(self, context: PrepareContext) -> None:
        self._context = context
        self._sequences = self._tokens = 0

    def __call__(self, ids: Sequence[int], start: int) -> Part:
        over = max(len(ids) - self._context.max_length, 0)
        self._context.measures.tokens.add([len(ids)], int(over > 0))
        self._sequences += over > 0
        self._tokens += over
        return np.asarray(ids[: self._context.max_length], dtype=np.int32), start  # type: ignore[return-value]

    def report(self, split: str) -> None:
        self._context.counts.update({_TRUNCATED: self._sequences, "dropped_tokens": self._tokens})
        if self._sequences:
            length = self._context.max_length
            self._context.notice(
                Notice(
                    message=f"{self._sequences:,} answers of the {split} split were cut to "
                    f"{length:,} tokens with their prompt; {self._tokens:,} tokens were lost. "
                    "Raise `task.max_length` to keep more of them.",
                    data={
                        "split": split,
                        "max_length": length,
                        _TRUNCATED: self._sequences,
                        "dropped_tokens": self._tokens,
                    },
                )
            )
