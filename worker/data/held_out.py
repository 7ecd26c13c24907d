"""Holding out a validation split from the training rows, for data without one."""

from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from service.contract.failures import FailureCode, StageError
from service.contract.spec.splits import TRAIN, VALIDATION
from worker.data.sources import Data
from worker.data.table import Row, RowError, Table


class HeldOut:
    """`data` with a share of its training rows as the validation split.

    The choice of rows is a pure function of the seed and the number of rows; both splits keep the
    order of the data.
    """

    def __init__(self, data: Data, percentage: int, seed: int, *, trains: bool = True) -> None:
        """If not `trains`, the remaining training rows are not a split."""
        self._data = data
        self._trains = trains
        self._percentage = percentage
        self._seed = seed
        self._held: npt.NDArray[np.bool_] | None = None
        self.revision = data.revision

    def splits(self) -> tuple[str, ...]:
        others = (split for split in self._data.splits() if split != TRAIN)
        return (*((TRAIN,) if self._trains else ()), VALIDATION, *others)

    def fingerprint(self) -> Any:
        held_out = {"percentage": self._percentage, "seed": self._seed}
        return {"data": self._data.fingerprint(), "held_out": held_out}

    def names(self, split: str) -> list[str]:
        return self._data.names(TRAIN if split == VALIDATION else split)

    def rows(self, split: str) -> int | None:
        if split not in (TRAIN, VALIDATION) or self._held is None:
            return self._data.rows(split)
        return int((self._held == (split == VALIDATION)).sum())

    def tables(self, split: str) -> Iterator[Table]:
        if split not in (TRAIN, VALIDATION):
            yield from self._data.tables(split)
            return
        if self._held is None:
            self._held = self._choose()
        wanted = (number for number in np.flatnonzero(self._held == (split == VALIDATION)))
        rows = _Rows(wanted)
        for table in self._data.tables(TRAIN):
            yield replace(table, rows=partial(rows.selected, table))

    def _choose(self) -> npt.NDArray[np.bool_]:
        """(rows,) True for the validation rows: at least one, but not all."""
        tables = self._data.tables(TRAIN)
        # For counting, any one column will do.
        rows = sum(1 for table in tables for _ in table.rows((table.columns or ())[:1]))
        if rows < 2:
            message = "`dataset.validation_split_percentage` needs at least two training rows"
            raise StageError(FailureCode.EMPTY_DATASET, f"{message}, but there are {rows}")
        size = min(max(round(rows * self._percentage / 100), 1), rows - 1)
        held = np.zeros(rows, dtype=np.bool_)
        held[np.random.default_rng(self._seed).permutation(rows)[:size]] = True
        return held


class _Rows:
    """The rows with the `wanted` numbers, counted over several tables."""

    def __init__(self, wanted: Iterator[Any]) -> None:
        self._wanted = wanted
        self._next = next(wanted, None)
        self._numbers = count()

    def selected(
        self, table: Table, columns: Collection[str]
    ) -> Iterator[tuple[str, Row | RowError]]:
        for row in table.rows(columns):
            if next(self._numbers) == self._next:
                self._next = next(self._wanted, None)
                yield row
