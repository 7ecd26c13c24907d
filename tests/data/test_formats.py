"""Real files of every format, good and bad."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.contract.failures import FailureCode
from tests.data.squad_sample import squad_file, squad_rows
from tests.data.table_files import failure, faults, read, source
from worker.data import document, table
from worker.data.formats import detect, open_table
from worker.data.table import RowError, Source

ROWS = [{"a": "x", "b": "1"}, {"a": "yé,\n", "b": "2"}]

JSONL = b'{"a": "x", "b": "1"}\n\n{"a": "y\xc3\xa9,\\n", "b": "2"}\n'
CSV = 'a,b\nx,1\n"yé,\n",2\n'.encode()


class TestDetect:
    @pytest.mark.parametrize(
        ("name", "content", "expected"),
        [
            ("d.jsonl", JSONL, "jsonl"),
            ("d.json", JSONL, "jsonl"),
            ("file-1", JSONL, "jsonl"),
            ("file-1", b'{"a": "x", "b": "1"}', "jsonl"),
            ("file-1", json.dumps(ROWS).encode(), "json"),
            ("file-1", b' \n[\n{"a": 1}]', "json"),
            ("file-1", b"\xef\xbb\xbf[]", "json"),
            ("file-1", json.dumps({"data": ROWS}).encode(), "json"),
            ("file-1", json.dumps({"data": ROWS}, indent=1).encode(), "json"),
            ("file-1", CSV, "csv"),
            ("file-1", b"a;b\n1;2\n", "csv"),
            ("d.tsv", b"a\n1\n", "csv"),
            ("file-1", b"no separator\n", "text"),
            ("d.txt", b"one, two\n", "text"),
            ("d.CSV", b"a\n1\n", "csv"),
        ],
    )
    def test_by_name_and_content(
        self, tmp_path: Path, name: str, content: bytes, expected: str
    ) -> None:
        assert detect(source(tmp_path, name, content)) == expected

    @pytest.mark.parametrize("version", ["1.1", "2.0"])
    def test_squad(self, version: str) -> None:
        assert detect(Source(squad_file("train", version), "file-1")) == "squad"

    def test_parquet_by_its_magic(self, tmp_path: Path) -> None:
        pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "stored")
        assert detect(Source(tmp_path / "stored", "file-1")) == "parquet"


class TestEveryFormat:
    @pytest.mark.parametrize(
        ("data_format", "content", "places"),
        [
            ("jsonl", JSONL, ["f, line 1", "f, line 3"]),
            ("csv", b"\xef\xbb\xbf" + CSV, ["f, line 2", "f, line 3"]),
            ("json", json.dumps(ROWS).encode(), ["f, row 1", "f, row 2"]),
            (
                "json",
                json.dumps({"v": [1], "data": ROWS, "w": 2}).encode(),
                ["f, row 1", "f, row 2"],
            ),
        ],
    )
    def test_gives_the_rows_and_their_places(
        self, tmp_path: Path, data_format: str, content: bytes, places: list[str]
    ) -> None:
        found = read(source(tmp_path, "f", content), data_format)
        assert found == list(zip(places, ROWS, strict=True))

    def test_parquet_reads_only_wanted_columns(self, tmp_path: Path) -> None:
        pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "stored")
        file = Source(tmp_path / "stored", "f")
        assert read(file) == [("f, row 1", ROWS[0]), ("f, row 2", ROWS[1])]
        assert read(file, wanted=("b",))[0] == ("f, row 1", {"b": "1"})

    def test_text_is_one_column(self, tmp_path: Path) -> None:
        opened = open_table(source(tmp_path, "f.txt", b"one\r\n\ntwo"), "auto")
        assert opened.columns == ("text",)
        rows: Any = opened.rows(())
        assert [row["text"] for _, row in rows] == ["one", "", "two"]

    @pytest.mark.parametrize("version", ["1.1", "2.0"])
    def test_squad_becomes_flat_rows(self, version: str) -> None:
        found = read(Source(squad_file("train", version), "f"))
        flat = [
            {
                **row,
                "answers": {
                    key: [answer[key] for answer in row["answers"]]
                    for key in ("text", "answer_start")
                },
            }
            for _, row in found
        ]
        assert flat == squad_rows("train", version)
        assert found[-1][0] == f"f, question {len(found)} (article 3)"

    def test_an_empty_file_is_an_empty_dataset(self, tmp_path: Path) -> None:
        code, message = failure(source(tmp_path, "f.csv", b""))
        assert (code, message) == (FailureCode.EMPTY_DATASET, "f.csv is empty (0 bytes)")


class TestBadRows:
    """Rows that cannot be read, between others that can: each is named, and reading resumes."""

    @pytest.mark.parametrize(
        ("data_format", "content", "messages", "readable"),
        [
            ("jsonl", b'{"a": \n{"a": 1}', ["f, line 1: not valid JSON: Expecting value at"], 1),
            ("jsonl", b'{"a": 1}\n\n[1]\n', ["f, line 3: must be a JSON object, not list"], 1),
            ("jsonl", b'{"a": "\xff"}\n{"a": 1}', ["f, line 1: not valid UTF-8 at byte 8"], 1),
            ("jsonl", b"[" * 100_000, ["f, line 1: not usable JSON: nested too deeply"], 0),
            ("jsonl", b'{"a": ' + b"9" * 5000 + b"}", ["f, line 1: not usable JSON: a number"], 0),
            (
                "jsonl",
                b'{"a": 1, "b": 2, "a": 3}\n{"a": [{"b": 1, "b": 1}]}\n{"a": 1}',
                [
                    "f, line 1: names the key 'a' more than once: keep one of its values",
                    "f, line 2: names the key 'b' more than once: keep one of its values",
                ],
                1,
            ),
            # A broken line says nothing about the next one.
            ("jsonl", b'[{"b": 1, "b": 1}, \n{"a": 1}', ["f, line 1: not valid JSON"], 1),
            ("json", b'[{"a": 1, "a": 2}, {"a": 1}]', ["f, row 1: names the key 'a' more"], 1),
            ("json", b'{"v": {"x": 1, "x": 2}, "data": [{"a": 1}]}', [], 1),
            (
                "squad",
                b'{"data": [{"paragraphs": [], "paragraphs": []}, {"paragraphs": []}]}',
                ["f, article 1: names the key 'paragraphs' more than once"],
                0,
            ),
            ("jsonl", b'{"a": "\x00"}\n{"a": 1}', ["f, line 1: holds a NUL byte at byte 8"], 1),
            ("text", b"one\n\xfftwo\nthree", ["f, line 2: not valid UTF-8 at byte 1"], 2),
            ("text", b"one\nt\x00wo\nthree", ["f, line 2: holds a NUL byte at byte 2"], 2),
            ("csv", b"a,b\n1,2\n1\n3,4", ["f, line 3: 1 field, but the header has 2"], 2),
            (
                "csv",
                b'a,b\n"1\n2",2\n1,2,3\n',
                ["f, line 4: 3 fields, but the header has 2"],
                1,
            ),
            ("csv", b'a,b\n1,"2\n', ["f, line 2: not valid CSV: unexpected end of data"], 0),
            (
                "csv",
                b'a,b\n1,"2\n3,4\n5,6',
                ["f, line 2: not valid CSV: unexpected end of data"],
                2,
            ),
            ("csv", b'a,b\n1,"2"x\n3,4', ["f, line 2: not valid CSV: "], 1),
            # A broken record's second line looks like a row but for its lone quotation mark.
            (
                "csv",
                b'a,b\n"x "q" y\nsecond",2\n3,4\n',
                ["f, line 2: not valid CSV: ", "f, line 3: not valid CSV: part of a broken"],
                1,
            ),
            ("csv", b"a,b\n1,\xe9\n3,4", ["f, line 2: not valid UTF-8 at byte 3"], 1),
            ("csv", b'a,b\n"1\n\xe9",2\n3,4', ["f, line 2: not valid UTF-8 at byte 1"], 1),
            ("csv", b"a,b\n1,\x00\n3,4", ["f, line 2: holds a NUL byte at byte 3"], 1),
            ("json", b'[{"a": 1}, 7, {"a": 2}]', ["f, row 2: must be a JSON object, not int"], 2),
            ("json", b'[{"a": "\xff"}, {"a": 1}]', ["f, row 1: not valid UTF-8"], 1),
            ("json", b'[{"a": 1}, {"b": ["\xc3"]}]', ["f, row 2: not valid UTF-8"], 1),
            (
                "squad",
                b'{"data": [{"title": "t"}, {"paragraphs": [{"qas": [{}]}]}]}',
                ["f, article 1: must hold a list `paragraphs`"],
                1,
            ),
            (
                "squad",
                b'{"data": [{"paragraphs": [{"qas": [1, {}]}, {}]}]}',
                ["f, question 1 (article 1): must", "f, article 1: must hold a list `qas`"],
                1,
            ),
        ],
    )
    def test_are_named_and_passed_over(
        self, tmp_path: Path, data_format: str, content: bytes, messages: list[str], readable: int
    ) -> None:
        file = source(tmp_path, "f", content)
        found = faults(file, data_format)
        assert len(found) == len(messages)
        for message, start in zip(found, messages, strict=True):
            assert message.startswith(start)
        assert len(read(file, data_format)) == readable + len(messages)

    @pytest.mark.parametrize(
        ("data_format", "content", "message"),
        [
            ("csv", b"a,b,a\n1,2,3\n", "f, line 1: the header names a more than once"),
            ("csv", b'"a,b\n1,2', "f, line 1: not valid CSV: unexpected end of data"),
            ("json", b'[{"a": 1}, {"a": ]', "f, row 2: not valid JSON: Expecting value"),
            ("json", b'[{"a": 1}, {"a": 1', "f, row 2: the file ends in the middle of it"),
            ("json", b'[{"a": 1}', "f, row 2: the file ends in the middle of it"),
            ("json", b'[{"a": 1} {"a": 2}]', "f, row 2: not valid JSON: Expecting ',' delimiter"),
            ("json", b'[{"a": 1}] [{"a": 2}]', "f, row 2: not valid JSON: Extra data"),
            ("json", b'{"data": [{"a": 1}]', "f, row 2: the file ends in the middle of it"),
        ],
    )
    def test_that_hide_where_the_next_begins_end_the_reading(
        self, tmp_path: Path, data_format: str, content: bytes, message: str
    ) -> None:
        code, found = failure(source(tmp_path, "f", content), data_format)
        assert code is FailureCode.UNREADABLE_ROW
        assert found.startswith(message)

    @pytest.mark.parametrize("data_format", ["jsonl", "csv", "text"])
    def test_a_row_beyond_all_measure(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data_format: str
    ) -> None:
        monkeypatch.setattr("worker.data.text.MAX_ROW_BYTES", 1024**2)
        content = b'{"a": 1}\n{"a": "' + b"x" * 3 * 1024**2 + b'"}\n{"a": 2}\n'
        file = source(tmp_path, "f", content)
        assert faults(file, data_format) == ["f, line 2: longer than 1 MiB"]
        assert read(file, data_format)[-1][0] == "f, line 3"

    def test_a_csv_record_beyond_all_measure_costs_one_line(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("worker.data.delimited.MAX_ROW_BYTES", 2000)
        content = b'a,b\n"never closed,2\n' + b"3,4\n" * 3000
        found = read(source(tmp_path, "f", content), "csv")
        assert [place for place, row in found if isinstance(row, RowError)] == ["f, line 2"]
        assert len(found) == 3001

    def test_parquet_with_a_text_that_is_none(self, tmp_path: Path) -> None:
        texts = pa.array([b"x", b"\xff", b"y"], pa.binary()).view(pa.string())
        pq.write_table(pa.table({"a": texts}), tmp_path / "stored")
        found = read(Source(tmp_path / "stored", "f"), wanted=("a",))
        assert [str(row) if isinstance(row, RowError) else row for _, row in found] == [
            {"a": "x"},
            "not valid UTF-8",
            {"a": "y"},
        ]

    @pytest.mark.parametrize(("encoding", "name"), [("utf-16", "UTF-16"), ("utf-32", "UTF-32")])
    @pytest.mark.parametrize("data_format", ["jsonl", "csv", "text"])
    def test_another_encoding_is_named(
        self, tmp_path: Path, encoding: str, name: str, data_format: str
    ) -> None:
        file = source(tmp_path, "f", '{"a": "x"}\n'.encode(encoding))
        code, message = failure(file, data_format)
        assert code is FailureCode.UNSUPPORTED_FORMAT
        assert f"iconv -f {name} -t UTF-8" in message


class TestUnsupportedFormat:
    @pytest.mark.parametrize("content", [b'{"rows": []}', b'"text"', b"nonsense", b'{"data": 3}'])
    def test_json_without_rows(self, tmp_path: Path, content: bytes) -> None:
        code, message = failure(source(tmp_path, "f", content), "json")
        assert code is FailureCode.UNSUPPORTED_FORMAT
        assert message.startswith("f: must be a JSON array of objects")

    def test_an_excel_file(self, tmp_path: Path) -> None:
        code, message = failure(source(tmp_path, "d.xlsx", b"PK\x03\x04rest"))
        assert code is FailureCode.UNSUPPORTED_FORMAT
        assert "save the sheet as `CSV UTF-8`" in message

    def test_truncated_parquet(self, tmp_path: Path) -> None:
        pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "whole")
        file = source(tmp_path, "f", (tmp_path / "whole").read_bytes()[:-9])
        code, message = failure(file)
        assert code is FailureCode.UNSUPPORTED_FORMAT
        assert message == "f: not a Parquet file, or cut off or damaged"

    def test_damaged_parquet_names_where_it_begins(self, tmp_path: Path) -> None:
        rows = [{"a": str(number), "b": "same"} for number in range(2000)]
        pq.write_table(
            pa.Table.from_pylist(rows), tmp_path / "whole", row_group_size=500, compression="snappy"
        )
        content = bytearray((tmp_path / "whole").read_bytes())
        start = pq.ParquetFile(tmp_path / "whole").metadata.row_group(2).column(0).data_page_offset
        content[start : start + 400] = b"\xff" * 400
        code, message = failure(source(tmp_path, "f", bytes(content)))
        assert code is FailureCode.UNREADABLE_ROW
        assert message == "f, row 1001: damaged Parquet data from here on"


class TestLongDocuments:
    def test_are_read_piece_by_piece(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Every border between two pieces falls somewhere: in strings, escapes, numbers, é."""
        rows = [
            {"a": f'é"\\{number}\u2028', "b": [number, 1.5e10, None, True]} for number in range(40)
        ]
        text = json.dumps({"data": rows, "end": 12345}, ensure_ascii=False).encode()
        for piece in (1, 2, 3, 7, 64):
            monkeypatch.setattr(document, "_PIECE", piece)
            assert [row for _, row in read(source(tmp_path, "f", text), "json")] == rows

    def test_hold_no_more_than_one_row(self, tmp_path: Path) -> None:
        import tracemalloc

        with (tmp_path / "stored").open("w") as file:
            file.write("[")
            for number in range(40_000):
                file.write(("," if number else "") + json.dumps({"a": "x" * 1000}))
            file.write("]")
        tracemalloc.start()
        count = sum(1 for _ in document.rows_of(Source(tmp_path / "stored", "f")).rows(()))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert count == 40_000
        assert peak < 12 * 1024**2  # of a file of 40 MB

    def test_an_endless_row_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(document, "MAX_ROW_BYTES", 2 * 1024**2)
        file = source(tmp_path, "f", b'[{"a": "' + b"x" * 8 * 1024**2)
        assert "longer than 2 MiB" in failure(file, "json")[1]
        assert table.MAX_ROW_BYTES == 64 * 1024**2
