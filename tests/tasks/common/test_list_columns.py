"""worker.tasks.common.list_columns: rows of lists in any order, over the parts of a file."""

from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pytest
from datasets.arrow_writer import ArrowWriter

from worker.tasks.common.list_columns import ListColumns

ROWS = [[1], [2, 3, 4], [], [5, 6], [7], [8, 9, 10, 11]]


@pytest.fixture
def columns(tmp_path: Path) -> ListColumns:
    """Of a file that was written in three batches."""
    kind = datasets.Features({"ids": datasets.List(datasets.Value("int32"))})
    with ArrowWriter(path=str(tmp_path / "a.arrow"), features=kind) as writer:
        for first in range(0, len(ROWS), 2):
            writer.write_table(pa.table({"ids": ROWS[first : first + 2]}))
        writer.finalize()
    return ListColumns(datasets.Dataset.from_file(str(tmp_path / "a.arrow")), ["ids"])


def test_any_rows_in_any_order(columns: ListColumns) -> None:
    assert len(columns.parts("ids")) == 3
    order = [5, 0, 3, 0, 2, 1]
    assert [row.tolist() for row in columns.rows("ids", order)] == [ROWS[n] for n in order]
    assert columns.lengths.tolist() == [1, 3, 0, 2, 1, 4]


def test_cut_to_a_length(columns: ListColumns) -> None:
    found = [row.tolist() for row in columns.rows("ids", np.arange(len(ROWS)), 2)]
    assert found == [row[:2] for row in ROWS]


def test_of_some_rows_of_a_file() -> None:
    whole = datasets.Dataset.from_dict({"ids": ROWS})
    columns = ListColumns(whole.select([3, 1]), ["ids"])
    assert [row.tolist() for row in columns.rows("ids", [0, 1])] == [[5, 6], [2, 3, 4]]


def test_of_no_row() -> None:
    kind = datasets.Features({"ids": datasets.List(datasets.Value("int32"))})
    columns = ListColumns(datasets.Dataset.from_dict({"ids": []}, features=kind), ["ids"])
    assert (len(columns), list(columns.rows("ids", []))) == (0, [])
