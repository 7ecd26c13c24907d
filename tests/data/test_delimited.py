"""CSV as people have it: from Excel in several languages, LibreOffice, pandas and databases."""

from pathlib import Path
from typing import Any

import pytest

from service.contract.failures import FailureCode, StageError
from worker.data.cleaning import Columns, RowChecker
from worker.data.delimited import table
from worker.data.table import RowError, Source

ROWS = [{"text": "Größe, Maß", "label": "gut"}, {"text": "漢字\nzwei", "label": "schlecht"}]


def read(folder: Path, content: str | bytes) -> list[tuple[str, Any]]:
    path = folder / "stored"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return [
        (place, str(row) if isinstance(row, RowError) else row)
        for place, row in table(Source(path, "a.csv")).rows(())
    ]


class TestTable:
    @pytest.mark.parametrize(
        "content",
        [
            'text,label\n"Größe, Maß",gut\n"漢字\nzwei",schlecht\n',
            '\ufefftext;label\r\nGröße, Maß;gut\r\n"漢字\nzwei";schlecht\r\n',
            'text\tlabel\nGröße, Maß\tgut\n"漢字\nzwei"\tschlecht',
            'text|label\nGröße, Maß|gut\n"漢字\nzwei"|schlecht\n',
            'sep=;\r\ntext;label\r\nGröße, Maß;gut\r\n"漢字\nzwei";schlecht\r\n',
            '"text" , label\n"Größe, Maß",gut\n"漢字\nzwei",schlecht\n'.replace('" ,', '",'),
            'text;label;;\nGröße, Maß;gut;;\n;;;\n\n"漢字\nzwei";schlecht;;\n;;;\n',
        ],
        ids=["comma", "german", "tab", "bar", "sep", "spaced", "empty-columns-and-lines"],
    )
    def test_reads_the_same_rows(self, tmp_path: Path, content: str) -> None:
        found = [row for _, row in read(tmp_path, content)]
        assert [{name: row[name] for name in ("text", "label")} for row in found] == ROWS

    def test_an_index_without_a_name_is_a_column(self, tmp_path: Path) -> None:
        assert read(tmp_path, ",text\n0,a\n1,\n") == [
            ("a.csv, line 2", {"": "0", "text": "a"}),
            ("a.csv, line 3", {"": "1", "text": ""}),
        ]

    def test_in_a_single_column_an_empty_text_is_a_row(self, tmp_path: Path) -> None:
        assert [row["text"] for _, row in read(tmp_path, 'text\na\n""\n\nb\n')] == ["a", "", "b"]

    def test_places_count_the_line_that_names_the_delimiter(self, tmp_path: Path) -> None:
        assert read(tmp_path, "sep=,\na,b\n1,2\n") == [("a.csv, line 3", {"a": "1", "b": "2"})]

    @pytest.mark.parametrize("mark", ['"', "", " ", "\r"])
    def test_what_cannot_be_a_delimiter_is_none(self, tmp_path: Path, mark: str) -> None:
        """Newer versions of Python refuse quotation marks and line ends with a ValueError."""
        [(place, row)] = read(tmp_path, f"sep={mark}\r\n1\r\n".encode())
        assert (place, list(row.values())) == ("a.csv, line 2", ["1"])

    @pytest.mark.parametrize(
        ("content", "problem"),
        [
            ("a;b\n1;2;3", "3 fields, but the header has 2: put texts that contain `;` in double"),
            ("a\tb\n1\t2\t3", "3 fields, but the header has 2: put texts that contain a tab in"),
            ('a,b\n1,"x "y" z"\n', "Inside a quoted text, write each quotation mark twice"),
            ('a,b\n1,"2\n', "Inside a quoted text, write each quotation mark twice"),
            (
                b"a,b\n1,Gr\xf6\xdfe\n",
                "not valid UTF-8 at byte 5: save the file as UTF-8 (in",
            ),
        ],
    )
    def test_explains_how_to_correct_a_row(
        self, tmp_path: Path, content: str | bytes, problem: str
    ) -> None:
        [(place, found)] = read(tmp_path, content)
        assert place == "a.csv, line 2"
        assert problem in found

    def test_explains_how_to_save_a_file_with_line_ends_of_its_own(self, tmp_path: Path) -> None:
        with pytest.raises(StageError, match="lines end with CR alone; save it with LF or CRLF"):
            read(tmp_path, b"a,b\r1,2\r")

    def test_a_header_must_not_repeat_a_name(self, tmp_path: Path) -> None:
        with pytest.raises(StageError, match="line 1: the header names a more than once"):
            read(tmp_path, "a;a;;\n1;2;;\n")

    def test_the_header_is_at_its_own_line(self, tmp_path: Path) -> None:
        with pytest.raises(StageError, match="line 4: the header names a more than once"):
            read(tmp_path, "sep=;\n\n\na;a\n")

    def test_a_missing_column_names_the_line_with_the_header(self, tmp_path: Path) -> None:
        (tmp_path / "stored").write_text("Text;Sentiment\na;b\n")
        names = Columns.from_mapping(("text", "label"), ("text", "label"), (), {})
        checking = RowChecker(names, dict, limit=None, skips=False)
        with pytest.raises(StageError) as caught:
            list(checking.rows([table(Source(tmp_path / "stored", "a.csv"))]))
        assert caught.value.failure.code is FailureCode.MISSING_COLUMN
        assert caught.value.failure.message == (
            "Missing column 'text', 'label' (a.csv, line 1). Columns found: 'Text', 'Sentiment'. "
            "Did you mean 'Text' for 'text'? To use columns of other names, set "
            "`dataset.columns: {text: Text, label: <your column>}`."
        )
