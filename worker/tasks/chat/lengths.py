"""How long conversations are, where they train, and the length that they are cut to."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from service.contract.stage.events import Notice
from worker.tasks.common.list_columns import ListColumns

_STEP: Final = 64
"""A chosen length is a multiple of this many tokens, unless it is that of the longest row."""
_WHOLE: Final = 1.5
"""Nothing is cut if the longest row is at most this many times the length of the 99th of 100."""

Counts = npt.NDArray[np.int64]


def first_trained(columns: ListColumns) -> Counts:
    """(rows,) the tokens of each row up to the first that is trained; 0 for a row that has none.

    The first token of a row is not predicted, so it is never trained.
    """
    found = [np.empty(0, dtype=np.int64)]
    for values, bounds in columns.parts("trained"):
        places = np.flatnonzero(values)
        starts, ends = bounds[:-1], bounds[1:]
        padded = np.append(places, len(values))
        first = padded[np.searchsorted(places, starts + 1)]
        found.append(np.where(first < ends, first - starts + 1, 0))
    return np.concatenate(found)


def trained_within(columns: ListColumns, length: int) -> Counts:
    """(rows,) how many tokens each row trains if it is cut to `length` tokens."""
    found = [np.empty(0, dtype=np.int64)]
    for values, bounds in columns.parts("trained"):
        before = np.concatenate([[0], np.cumsum(values != 0)])
        starts, ends = bounds[:-1], bounds[1:]
        ends = np.minimum(ends, starts + length)
        found.append(before[ends] - before[np.minimum(starts + 1, ends)])
    return np.concatenate(found)


def chosen(tokens: Counts, needed: Counts) -> int:
    """The length that nearly all rows need: that of 99 % of them, so that each trains at least one
    token; the longest row's if it is not far from that.

    `tokens`: of each row; `needed`: those up to the first that is trained.
    """
    most = int(np.percentile(tokens, 99, method="inverted_cdf"))
    length = max(-(-most // _STEP) * _STEP, int(needed.max()))
    longest = int(tokens.max())
    return longest if longest <= _WHOLE * length else length


@dataclass(frozen=True)
class Cut:
    """What cutting the rows of a split takes away."""

    rows: int
    tokens: int
    trained: int
    """Of these tokens, how many would have been trained."""

    @classmethod
    def from_lengths(cls, columns: ListColumns, length: int) -> "Cut":
        over = np.maximum(columns.lengths - length, 0)
        whole = trained_within(columns, int(columns.lengths.max(initial=0)))
        lost = whole - trained_within(columns, length)
        return cls(int((over > 0).sum()), int(over.sum()), int(lost.sum()))

    def __str__(self) -> str:
        if not self.rows:
            return "no row is cut"
        return (
            f"{_of(self.rows, 'row')} longer than that {'is' if self.rows == 1 else 'are'} cut at "
            f"the end, {_of(self.tokens, 'token')} in all; {self.trained:,} of these would have "
            "been trained"
        )


def _of(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def choice_notice(tokens: Counts, length: int, cut: Cut) -> Notice:
    """The length that was chosen from the training rows."""
    ranks = {f"p{rank}": int(np.percentile(tokens, rank, method="higher")) for rank in (50, 95, 99)}
    longest = int(tokens.max())
    return Notice(
        message=f"`task.max_length` is {length:,}, chosen from the training rows: half of them "
        f"have at most {ranks['p50']:,} tokens, 95 % at most {ranks['p95']:,}, 99 % at most "
        f"{ranks['p99']:,}, the longest {longest:,}; {cut}",
        data={"split": "train", "max_length": length, "longest": longest, **ranks, **_data(cut)},
    )


def cut_notice(split: str, length: int, cut: Cut) -> Notice:
    return Notice(
        message=f"{split} split, `task.max_length` {length:,}: {cut}",
        data={"split": split, "max_length": length, **_data(cut)},
    )


def _data(cut: Cut) -> dict[str, Any]:
    return {
        "truncated_rows": cut.rows,
        "dropped_tokens": cut.tokens,
        "dropped_trained_tokens": cut.trained,
    }
