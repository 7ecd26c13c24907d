"""Small files that become large, and files that no program should have written."""

import json
import resource
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Features, Value

from service.contract.failures import FailureCode, StageError
from tests.data.table_files import failure, faults, read, source
from worker.data import parquet
from worker.data.cleaning import Columns, RowChecker
from worker.data.load import write_examples
from worker.data.prepared_size import SizeLimit
from worker.data.table import MAX_ROW_BYTES, RowError, Source, Table

MIB = 1024**2
ROOT = Path(__file__).resolve().parents[2]


def table(folder: Path, columns: dict[str, Any], **options: Any) -> Source:
    path = folder / "stored"
    pq.write_table(pa.table(columns), path, **options)
    return Source(path, "d.parquet")


def in_a_fresh_process(program: str) -> str:
    """What it prints. There is no freed memory to use again, which no limit would count."""
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


class TestParquet:
    def test_a_cell_that_compresses_well_is_a_bad_row(self, tmp_path: Path) -> None:
        cells = ["a", "x" * (MAX_ROW_BYTES + 1), "b"]
        file = table(tmp_path, {"a": cells, "b": ["1", "2", "3"]}, compression="zstd")
        assert file.path.stat().st_size < 20_000
        assert faults(file) == ["d.parquet, row 2: longer than 64 MiB"]
        usable = [row["a"] for _, row in read(file) if not isinstance(row, RowError)]
        assert usable == ["a", "b"]

    def test_a_list_of_millions_is_a_bad_row(self, tmp_path: Path) -> None:
        lists = pa.array([[0] * 4_000_001, [1]], pa.list_(pa.int8()))
        file = table(tmp_path, {"a": lists, "b": ["1", "2"]}, compression="zstd")
        assert faults(file) == ["d.parquet, row 1: has more than 4,000,000 values in its lists"]

    def test_nested_lists_are_counted_as_well(self, tmp_path: Path) -> None:
        kind = pa.list_(pa.struct([("x", pa.list_(pa.null()))]))
        lists = pa.array([[{"x": [None] * 2_000_001}] * 2], kind)
        file = table(tmp_path, {"a": lists, "b": ["1"]})
        assert [fault.partition(": ")[2][:29] for fault in faults(file)] == [
            "has more than 4,000,000 value"
        ]

    @pytest.mark.heavy
    def test_a_value_that_is_stored_once_does_not_fill_the_memory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(parquet, "_MEMORY_AT_ONCE", 128 * MIB)
        column = pa.array(["x" * 8 * MIB] * 50)  # 400 MB as rows
        file = table(tmp_path, {"a": column, "b": ["1"] * 50}, compression="zstd")
        assert file.path.stat().st_size < 20_000
        limit = resource.getrlimit(resource.RLIMIT_DATA)
        assert [len(row["a"]) for _, row in read(file)] == [8 * MIB] * 50
        assert resource.getrlimit(resource.RLIMIT_DATA) == limit

    def test_a_file_unpacks_to_a_limited_multiple_of_itself(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(parquet, "_UNPACKED", 64 * MIB)
        column = pa.array(["x" * MIB] * 1000)
        file = table(tmp_path, {"a": column, "b": ["1"] * 1000}, compression="zstd")
        code, message = failure(file)
        assert code is FailureCode.DATA_TOO_LARGE
        assert message.startswith("d.parquet, row 1: up to here the file unpacks to more than 64")

    @pytest.mark.usefixtures("processes")
    def test_a_row_that_does_not_fit_in_memory_is_named(self, tmp_path: Path) -> None:
        cells = ["a", "b", "x" * 300 * MIB]
        file = table(tmp_path, {"a": cells, "b": ["1"] * 3}, row_group_size=1, compression="zstd")
        program = f"""
from pathlib import Path
from service.contract.failures import StageError
from worker.data import parquet
from worker.data.table import Source
parquet._MEMORY_AT_ONCE = 200 * 1024**2
try:
    list(parquet.rows_of(Source(Path({str(file.path)!r}), "d.parquet")).rows(["a", "b"]))
except StageError as error:
    print(error.failure.code, error.failure.message)
"""
        assert in_a_fresh_process(program) == (
            "data_too_large d.parquet, row 3: unpacking it takes more than 200 MiB of memory\n"
        )

    def test_metadata_that_claims_to_be_huge_is_not_read(self, tmp_path: Path) -> None:
        file = source(tmp_path, "d.parquet", b"PAR1" + struct.pack("<I", 2**31) + b"PAR1")
        code, message = failure(file)
        assert code is FailureCode.UNSUPPORTED_FORMAT
        assert "2,147,483,648 bytes" in message

    @pytest.mark.parametrize("at", range(0, 400, 7))
    def test_a_changed_byte_never_raises_anything_else(self, tmp_path: Path, at: int) -> None:
        file = table(tmp_path, {"a": ["x", "y"] * 20, "b": ["1", "2"] * 20})
        content = bytearray(file.path.read_bytes())
        content[-1 - at % len(content)] ^= 0xFF
        file.path.write_bytes(content)
        try:
            read(file, "parquet")
        except StageError as error:
            assert error.failure.code is not FailureCode.INTERNAL  # noqa: PT017


class TestText:
    @pytest.mark.usefixtures("processes")
    def test_millions_of_lists_in_a_line(self, tmp_path: Path) -> None:
        line = b'{"a": [' + b"[]," * 3_000_000 + b"[]]}\n"
        file = source(tmp_path, "d.jsonl", line + b'{"a": 1}\n')
        program = f"""
from pathlib import Path
from tests.data.table_files import faults
from worker.data import text
from worker.data.table import Source
text._PARSED = 100 * 1024**2
print(faults(Source(Path({str(file.path)!r}), "d.jsonl")))
"""
        assert in_a_fresh_process(program) == (
            "['d.jsonl, line 1: needs more than 100 MiB of memory']\n"
        )

    def test_deep_nesting(self, tmp_path: Path) -> None:
        file = source(tmp_path, "d.jsonl", b'{"a": ' + b"[" * 200_000 + b"}\n")
        assert faults(file) == ["d.jsonl, line 1: not usable JSON: nested too deeply"]

    def test_a_header_of_too_many_columns(self, tmp_path: Path) -> None:
        names = ",".join(f"c{n}" for n in range(100_001))
        code, message = failure(source(tmp_path, "d.csv", f"{names}\n1\n".encode()))
        assert code is FailureCode.UNREADABLE_ROW
        assert message == "d.csv, line 1: the header names 100,001 columns, more than 100,000"

    def test_a_quoted_text_of_empty_lines(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("worker.data.delimited.MAX_ROW_BYTES", 10_000)
        content = b'a,b\n1,"' + b"\n" * 500 + b"x,y\n"
        found = faults(source(tmp_path, "d.csv", content))
        assert found[0].startswith("d.csv, line 2: not valid CSV")


class TestPreparedSize:
    def test_rows_that_fill_the_disk(self, tmp_path: Path) -> None:
        def rows(_wanted: Any) -> Iterator[tuple[str, Any]]:
            for number in range(1000):
                yield f"row {number}", {"text": "x" * 16 * MIB}

        columns = Columns.from_mapping(["text"], ["text"], (), {})
        checking = RowChecker(columns, lambda row: dict(row), limit=None, skips=False)
        limit = SizeLimit("train", 100 * MIB)
        schema, target = Features({"text": Value("large_string")}), tmp_path / "e.arrow"
        table = Table(("text",), rows)
        with pytest.raises(StageError, match="FINETUNE_MAX_PREPARED_BYTES") as caught:
            write_examples(checking, schema, [table], target, lambda _count: None, limit)
        assert caught.value.failure.code is FailureCode.DATA_TOO_LARGE
        assert target.stat().st_size < 250 * MIB


def test_columns_of_a_message_are_few(tmp_path: Path) -> None:
    row = {f"c{n}": 1 for n in range(5000)}
    columns = Columns.from_mapping(["text"], ["text"], (), {})
    checking = RowChecker(columns, lambda row: dict(row), limit=None, skips=False)
    file = source(tmp_path, "d.jsonl", json.dumps(row).encode())
    with pytest.raises(StageError) as caught:
        list(checking.rows([parquet_free(file)]))
    assert len(caught.value.failure.message) < 2000
    assert len(caught.value.failure.details["found"]) == 100


def parquet_free(file: Source) -> Table:
    from worker.data.text import jsonl

    return jsonl(file)
