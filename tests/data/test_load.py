from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import datasets
import pytest

from service.contract.failures import FailureCode, StageError
from worker.data.cleaning import Columns, RowChecker
from worker.data.load import write_examples
from worker.data.table import RowError, Table
from worker.data.usable_rows import Policy, Split

SCHEMA = datasets.Features({"a": datasets.Value("string"), "b": datasets.Value("int64")})


def clean(row: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(row["a"], str):
        raise RowError("`a` must be text", reason="not_text")
    return {"a": row["a"], "b": row.get("b")}


def table(*rows: dict[str, Any], columns: tuple[str, ...] | None = None) -> Table:
    def read(_wanted: Any) -> Iterator[tuple[str, dict[str, Any]]]:
        for number, row in enumerate(rows, start=1):
            yield f"f, row {number}", row

    return Table(columns, read, "f")


def columns(**mapping: str) -> Columns:
    return Columns.from_mapping(["a", "b"], ["a"], (), mapping)


def write(
    target: Path,
    *tables: Table,
    limit: int | None = None,
    names: Columns | None = None,
    skips: bool = False,
    max_bad_fraction: float = 0.05,
) -> list[dict[str, Any]]:
    checking = RowChecker(names or columns(), clean, limit, skips)
    counts: list[int] = []
    tally = write_examples(checking, SCHEMA, tables, target / "e.arrow", counts.append)
    split = Split("train", tally, ["f"] * len(tables))
    problem = Policy(skips, max_bad_fraction).problem([split])
    if problem is not None:
        raise problem
    rows: list[dict[str, Any]] = datasets.Dataset.from_file(str(target / "e.arrow")).to_list()
    assert counts[-1] == tally.used == len(rows)
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

    def test_all_bad_rows_are_named(self, tmp_path: Path) -> None:
        rows: list[dict[str, Any]] = [{"a": "x"}, {"a": 3}, {"b": 1}] * 60
        with pytest.raises(StageError) as caught:
            write(tmp_path, table(*rows), table({"a": None}))
        failure = caught.value.failure
        assert failure.message.startswith(
            "121 of 181 rows of the train split cannot be used (not_text 61, missing_value 60). "
            "The first: f, row 2: `a` must be text; f, row 3: has no 'a'; "
        )
        assert (failure.details["rows_bad"], failure.details["rows_read"]) == (121, 181)
        assert failure.details["bad_by_reason"] == {"not_text": 61, "missing_value": 60}
        places = [row["place"] for row in failure.details["bad_rows"]]
        assert places == [f"f, row {n}" for n in range(1, 151) if n % 3 != 1]
        assert failure.details["bad_rows"][0] == {
            "split": "train",
            "place": "f, row 2",
            "reason": "not_text",
            "problem": "`a` must be text",
        }

    def test_what_is_named_is_bounded(self, tmp_path: Path) -> None:
        def read(_wanted: Any) -> Iterator[tuple[str, Any]]:
            for number in range(200):
                yield f"f, {'x' * 999} {number}", RowError("y" * 9999, reason="long")

        with pytest.raises(StageError) as caught:
            write(tmp_path, Table(("a",), read, "f"))
        assert len(caught.value.failure.message) < 3000
        assert len(repr(caught.value.failure.details)) < 60_000
        assert len(caught.value.failure.details["bad_rows"]) == 100

    @pytest.mark.parametrize("tables", [(), (table(),), (table(columns=("a",)),)])
    def test_no_row_at_all_is_an_empty_dataset(
        self, tmp_path: Path, tables: tuple[Table, ...]
    ) -> None:
        with pytest.raises(StageError, match="The train split has no rows") as caught:
            write(tmp_path, *tables)
        assert caught.value.failure.code is FailureCode.EMPTY_DATASET


class TestSkip:
    def test_leaves_bad_rows_out(self, tmp_path: Path) -> None:
        rows = [{"a": str(number)} for number in range(19)]
        found = write(tmp_path, table({"a": 1}, *rows), skips=True)
        assert [row["a"] for row in found] == [row["a"] for row in rows]

    def test_a_bad_first_row_hides_no_column(self, tmp_path: Path) -> None:
        found = write(tmp_path, table({"b": 1}, {"a": "x"}), skips=True, max_bad_fraction=0.5)
        assert [row["a"] for row in found] == ["x"]

    @pytest.mark.parametrize(("good", "fails"), [(19, False), (18, True)])
    def test_up_to_the_allowed_fraction(self, tmp_path: Path, good: int, fails: bool) -> None:
        tables = table({"a": 1}, *[{"a": "x"}] * good)
        if not fails:
            assert len(write(tmp_path, tables, skips=True)) == good
            return
        with pytest.raises(StageError) as caught:
            write(tmp_path, tables, skips=True)
        assert caught.value.failure.code is FailureCode.UNREADABLE_ROW
        assert caught.value.failure.message == (
            "1 of 19 rows of the train split cannot be used (not_text 1): 5.26% of them, and "
            "`dataset.max_bad_fraction` allows 5.00%. f, row 1: `a` must be text"
        )

    def test_all_rows_may_be_bad_only_if_one_is_used(self, tmp_path: Path) -> None:
        with pytest.raises(
            StageError, match="All 1 rows of the train split were skipped"
        ) as caught:
            write(tmp_path, table({"a": 1}), skips=True, max_bad_fraction=1)
        assert caught.value.failure.code is FailureCode.EMPTY_DATASET

    def test_the_limit_counts_rows_that_are_used(self, tmp_path: Path) -> None:
        rows = table({"a": "x"}, {"a": 1}, {"a": "y"}, {"a": "z"})
        found = write(tmp_path, rows, limit=2, skips=True, max_bad_fraction=0.5)
        assert [row["a"] for row in found] == ["x", "y"]
        with pytest.raises(StageError, match="f, row 2"):
            write(tmp_path, rows, limit=2)


class TestMissingColumn:
    def test_names_the_columns_found_and_the_nearest(self, tmp_path: Path) -> None:
        with pytest.raises(StageError) as caught:
            write(tmp_path, table(columns=("passage", "b")), names=columns(a="passages"))
        failure = caught.value.failure
        assert failure.code is FailureCode.MISSING_COLUMN
        assert failure.message == (
            "Missing column 'passages'. Columns found: 'passage', 'b'. "
            "Did you mean 'passage' for 'passages'? "
            "To use columns of other names, set `dataset.columns: {a: passage}`."
        )
        assert failure.details["found"] == ["passage", "b"]

    def test_is_seen_in_the_first_row_of_a_table_without_a_header(self, tmp_path: Path) -> None:
        with pytest.raises(StageError, match=r"Missing column 'a' \(f, row 1\)") as caught:
            write(tmp_path, table({"x": 1}))
        assert caught.value.failure.code is FailureCode.MISSING_COLUMN

    def test_is_reported_after_a_thousand_rows(self, tmp_path: Path) -> None:
        def read(_wanted: Any) -> Iterator[tuple[str, dict[str, Any]]]:
            yield from ((f"f, row {number}", {"x": 1}) for number in range(1, 1001))
            raise AssertionError("read on")

        with pytest.raises(StageError, match=r"Missing column 'a' \(f, row 1\)"):
            write(tmp_path, Table(None, read, "f"))

    def test_a_mapped_column_is_needed_even_if_the_task_could_do_without(
        self, tmp_path: Path
    ) -> None:
        with pytest.raises(StageError, match="Missing column 'label'"):
            write(tmp_path, table(columns=("a",)), names=columns(b="label"))

    def test_unless_the_split_is_spared(self, tmp_path: Path) -> None:
        names = Columns.from_mapping(["a", "b"], ["a"], {"b"}, {"b": "label"})
        assert write(tmp_path, table({"a": "x"}), names=names) == [{"a": "x", "b": None}]

    def test_a_column_that_the_task_does_not_have_cannot_be_mapped(self) -> None:
        with pytest.raises(StageError, match="maps 'c', but the task's columns are a, b") as caught:
            columns(c="x")
        assert caught.value.failure.code is FailureCode.INVALID_OPTION
