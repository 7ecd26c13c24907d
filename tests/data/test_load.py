from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import datasets
import pytest

from service.contract.failures import FailureCode, StageError
from worker.data.load import Columns, Examples
from worker.data.table import Table
from worker.tasks.base import RowError

SCHEMA = datasets.Features({"a": datasets.Value("string"), "b": datasets.Value("int64")})


def clean(row: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(row["a"], str):
        raise RowError("`a` must be text")
    return {"a": row["a"], "b": row.get("b")}


def table(*rows: dict[str, Any], columns: tuple[str, ...] | None = None) -> Table:
    def read(_wanted: Any) -> Iterator[tuple[str, dict[str, Any]]]:
        for number, row in enumerate(rows, start=1):
            yield f"f, row {number}", row

    return Table(columns, read)


def columns(**mapping: str) -> Columns:
    return Columns.of(["a", "b"], ["a"], (), mapping)


def write(
    target: Path, *tables: Table, limit: int | None = None, names: Columns | None = None
) -> list[dict[str, Any]]:
    examples = Examples(names or columns(), clean, SCHEMA, limit)
    counts: list[int] = []
    count = examples.write("train", tables, target / "e.arrow", counts.append)
    rows = datasets.Dataset.from_file(str(target / "e.arrow")).to_list()
    assert counts[-1] == count == len(rows)
    return rows


class TestWrite:
    def test_several_tables_become_one(self, tmp_path: Path) -> None:
        rows = write(tmp_path, table({"a": "x", "b": 1, "c": 0}), table({"a": "y"}))
        assert rows == [{"a": "x", "b": 1}, {"a": "y", "b": None}]

    def test_columns_are_renamed(self, tmp_path: Path) -> None:
        rows = write(tmp_path, table({"text": "x", "a": 3}), names=columns(a="text"))
        assert rows == [{"a": "x", "b": None}]

    def test_stops_at_the_limit_without_looking_further(self, tmp_path: Path) -> None:
        rows = write(tmp_path, table({"a": "x"}, {"a": "y"}, {"a": 3}), limit=2)
        assert [row["a"] for row in rows] == ["x", "y"]

    def test_a_bad_row_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(StageError, match="f, row 2: `a` must be text") as caught:
            write(tmp_path, table({"a": "x"}, {"a": 3}))
        assert caught.value.failure.code is FailureCode.UNREADABLE_ROW

    def test_a_later_row_without_the_column_is_a_bad_row(self, tmp_path: Path) -> None:
        with pytest.raises(StageError, match="f, row 2: has no 'a'") as caught:
            write(tmp_path, table({"a": "x"}, {"b": 3}))
        assert caught.value.failure.code is FailureCode.UNREADABLE_ROW

    @pytest.mark.parametrize("tables", [(), (table(),), (table(columns=("a",)),)])
    def test_no_row_at_all_is_an_empty_dataset(
        self, tmp_path: Path, tables: tuple[Table, ...]
    ) -> None:
        with pytest.raises(StageError, match="The train split has no rows") as caught:
            write(tmp_path, *tables)
        assert caught.value.failure.code is FailureCode.EMPTY_DATASET


class TestMissingColumn:
    def test_names_the_columns_found_and_the_nearest(self, tmp_path: Path) -> None:
        with pytest.raises(StageError) as caught:
            write(tmp_path, table(columns=("passage", "b")), names=columns(a="passages"))
        failure = caught.value.failure
        assert failure.code is FailureCode.MISSING_COLUMN
        assert failure.message == (
            "Missing column 'passages'. Columns found: 'passage', 'b'. "
            "Did you mean 'passage' for 'passages'?"
        )
        assert failure.details["found"] == ["passage", "b"]

    def test_is_seen_in_the_first_row_of_a_table_without_a_header(self, tmp_path: Path) -> None:
        with pytest.raises(StageError, match=r"Missing column 'a' \(f, row 1\)") as caught:
            write(tmp_path, table({"x": 1}))
        assert caught.value.failure.code is FailureCode.MISSING_COLUMN

    def test_a_mapped_column_is_needed_even_if_the_task_could_do_without(
        self, tmp_path: Path
    ) -> None:
        with pytest.raises(StageError, match="Missing column 'label'"):
            write(tmp_path, table(columns=("a",)), names=columns(b="label"))

    def test_unless_the_split_is_spared(self, tmp_path: Path) -> None:
        names = Columns.of(["a", "b"], ["a"], {"b"}, {"b": "label"})
        assert write(tmp_path, table({"a": "x"}), names=names) == [{"a": "x", "b": None}]

    def test_a_column_that_the_task_does_not_have_cannot_be_mapped(self) -> None:
        with pytest.raises(StageError, match="maps 'c', but the task's columns are a, b") as caught:
            columns(c="x")
        assert caught.value.failure.code is FailureCode.INVALID_OPTION
