"""Tables as text and as HTML."""

from datetime import UTC, datetime
from typing import Any

from finetune_client import Table, types

AT = datetime(2026, 1, 2, 3, 4, 5, 678, UTC)
ROWS = [{"step": 1, "loss": 0.123456789, "at": AT}, {"step": 20, "at": None, "more": [1]}]


class TestTable:
    def test_columns_are_the_fields_that_hold_one_value(self) -> None:
        artifact = types.Artifact(name="a", bytes=1, sha256="0", created_at=AT, url="/a")
        assert Table([artifact]).columns == ["name", "bytes", "sha256", "created_at", "url"]
        assert Table(reversed(ROWS)).columns == ["step", "at"]

    def test_as_text(self) -> None:
        assert str(Table(ROWS)).splitlines() == [
            "step  loss      at",
            "1     0.123457  2026-01-02 03:04:05+00:00",
            "20",
        ]
        assert repr(Table(ROWS, ["more"])) == "more\n\n[1]"
        assert str(Table()) == ""

    def test_a_name_cannot_change_what_a_terminal_shows(self) -> None:
        assert str(Table([{"name": "a\x1b[2J\nb"}])) == "name\na?[2J?b"

    def test_many_rows_are_counted(self) -> None:
        table = Table([{"n": n} for n in range(250)], caption="numbers")
        assert str(table).splitlines()[-2:] == ["99", "… and 150 more"]
        assert "<caption>numbers (the first 100 of 250)</caption>" in table._repr_html_()
        assert table._repr_html_().count("<tr>") == 101

    def test_html_is_escaped(self) -> None:
        rows: list[dict[str, Any]] = [{"<b>": "<script>"}]
        assert "<b>" not in Table(rows, caption="<b>")._repr_html_()
        assert "&lt;script&gt;" in Table(rows)._repr_html_()
