"""`data_report.json`: used and skipped rows of each split, and their lengths in tokens."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from service.contract.failures import FailureCode
from worker.data import usable_rows
from worker.data.cleaning import BadRow, Tally
from worker.data.inferences import Inferences
from worker.data.usable_rows import Policy

NAME: Final = "data_report.json"
_BINS: Final = 20
_LABELS: Final = 100
"""The most frequent ones, which are counted in the report."""
_CHARACTERS: Final = 200
"""Of a label."""
_PERCENTILES: Final = (50, 90, 95, 99)


@dataclass
class Lengths:
    """Token counts of whole texts, before anything is cut."""

    _parts: list[np.ndarray[Any, np.dtype[np.uint32]]] = field(default_factory=list)
    truncated: int = 0

    def add(self, lengths: Iterable[int], truncated: int = 0) -> None:
        self._parts.append(np.fromiter(lengths, dtype=np.uint32))
        self.truncated += truncated

    def summary(self) -> dict[str, Any] | None:
        """None if nothing was measured."""
        values = np.concatenate(self._parts) if self._parts else np.empty(0, dtype=np.uint32)
        if not len(values):
            return None
        ranks = np.percentile(values, _PERCENTILES, method="higher")
        return {
            "total": int(values.sum(dtype=np.int64)),
            "min": int(values.min()),
            "mean": round(float(values.mean()), 2),
            **{f"p{rank}": int(value) for rank, value in zip(_PERCENTILES, ranks, strict=True)},
            "max": int(values.max()),
            "histogram": _histogram(values, int(ranks[-1])),
        }


def _histogram(values: Any, p99: int) -> list[dict[str, int]]:
    """Bins of equal width, a power of two; the last one also holds the longest 1 %."""
    width = 1
    while p99 >= width * _BINS:
        width *= 2
    counts = np.bincount(np.minimum(values // width, _BINS), minlength=1).tolist()
    first = next(number for number, count in enumerate(counts) if count)
    last = len(counts) - 1
    longest = int(values.max())
    return [
        {
            "from": number * width,
            "to": longest if number == last else (number + 1) * width - 1,
            "rows": counts[number],
        }
        for number in range(first, last + 1)
    ]


@dataclass
class Measures:
    """What a task measures while it prepares a split."""

    tokens: Lengths = field(default_factory=Lengths)
    """Of each row, or of its source if it has a target."""
    target_tokens: Lengths = field(default_factory=Lengths)
    windows: Counter[int] | None = None
    """Features per row → number of rows; None if features are not made row by row."""
    labels: Counter[str] | None = None
    """Label → rows that have it, or words; None for tasks without labels."""

    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = {"tokens": self.tokens.summary()}
        found["truncated"] = self.tokens.truncated
        targets = self.target_tokens.summary()
        if targets is not None:
            found |= {"target_tokens": targets}
            found |= {"targets_truncated": self.target_tokens.truncated}
        if self.labels:
            listed = self.labels.most_common(_LABELS)
            found |= {"labels": {name[:_CHARACTERS]: count for name, count in listed}}
        windows = None
        if self.windows is not None:
            windows = {str(number): rows for number, rows in sorted(self.windows.items())}
        return found | {"windows_per_example": windows}


# ---- with the prepared data ---------------------------------------------------------------------


def write(folder: Path, tallies: Mapping[str, Tally], measures: Mapping[str, Any]) -> None:
    """Write into the prepared data. Files are numbered: another job may have other names."""
    splits = {
        split: {"tally": asdict(tally), "measures": measures[split]}
        for split, tally in tallies.items()
    }
    (folder / NAME).write_text(json.dumps(splits))


def read(folder: Path) -> tuple[dict[str, Tally], dict[str, Any]]:
    """Read what `write` wrote."""
    splits = json.loads((folder / NAME).read_text())
    tallies = {split: _tally(found["tally"]) for split, found in splits.items()}
    return tallies, {split: found["measures"] for split, found in splits.items()}


def _tally(stored: dict[str, Any]) -> Tally:
    rows = [BadRow(**{**row, "code": FailureCode(row["code"])}) for row in stored.pop("bad_rows")]
    stored["codes"] = [FailureCode(code) for code in stored["codes"]]
    return Tally(**stored, bad_rows=rows)


# ---- for the user -------------------------------------------------------------------------------


def render(
    policy: Policy,
    names: Mapping[str, list[str]],
    tallies: Mapping[str, Tally],
    measures: Mapping[str, Any],
    inferences: Inferences,
) -> dict[str, Any]:
    """The report; `names` are those of each split's tables."""
    return {
        "on_bad_row": "skip" if policy.skips else "fail",
        "max_bad_fraction": policy.max_bad_fraction if policy.skips else None,
        "inferred": inferences.as_json(),
        "splits": {
            split: {**counts(tally), **measures.get(split, {})}
            | {"unused_columns": tally.unused}
            | {"bad_rows": usable_rows.listed(tally, names[split])}
            for split, tally in tallies.items()
        },
    }


def counts(tally: Tally) -> dict[str, Any]:
    return {
        "rows_read": tally.read,
        "rows_used": tally.used,
        "rows_skipped": tally.bad,
        "skipped_by_reason": usable_rows.by_reason(tally),
        **tally.changes,
    }


def summary(report: Mapping[str, Any]) -> dict[str, Any]:
    """The report without its bad rows: what the job's page shows."""
    splits = {
        split: {name: value for name, value in found.items() if name != "bad_rows"}
        for split, found in report["splits"].items()
    }
    return {**report, "splits": splits}
