"""About how many rows a file has, without reading its rows."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from worker.data import row_counts
from worker.data.row_counts import estimate
from worker.data.table import Source


@pytest.mark.parametrize(
    ("name", "content", "rows"),
    [
        ("a.jsonl", b'{"a": 1}\n{"a": 2}\n', 2),
        ("a.jsonl", b'{"a": 1}\n{"a": 2}', 2),
        ("a.csv", b"a,b\n1,2\n3,4\n", 2),
        ("a.txt", b"one\ntwo\nthree\n", 3),
        ("a.json", b'[{"a": 1}, {"a": 2}]', None),
    ],
)
def test_lines_are_rows(tmp_path: Path, name: str, content: bytes, rows: int | None) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert estimate(Source(path, name), "auto") == rows


def test_parquet_has_it_in_its_metadata(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": range(123)}), path)
    assert estimate(Source(path, path.name), "auto") == 123


def test_the_end_of_a_long_file_is_like_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_counts, "_COUNTED", 1024**2)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n' * 400_000)
    assert estimate(Source(path, path.name), "auto") == pytest.approx(400_000, rel=1e-3)
