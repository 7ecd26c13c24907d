"""docs/public-reports.md names the test of each report: they exist."""

import ast
import re
from typing import Final

import pytest

from tests.docs.pages import ROOT, code_spans

_PAGE: Final = ROOT / "docs" / "public-reports.md"
NAMED: Final = [
    span for span in code_spans(_PAGE.read_text(encoding="utf-8")) if span.startswith("tests/")
]


def names_in(path: str) -> set[str]:
    """`test_a` and `TestB::test_c`, as pytest has them."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    found = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}::{each.name}"
                for each in node.body
                if isinstance(each, ast.FunctionDef)
            }
    return found


class TestNamedTests:
    @pytest.mark.parametrize("named", NAMED)
    def test_each_exists(self, named: str) -> None:
        path, _, name = named.partition("::")
        assert name in names_in(path)

    def test_each_row_names_one(self) -> None:
        text = _PAGE.read_text(encoding="utf-8")
        rows = [
            line
            for line in text.splitlines()
            if re.match(r"\| (?!report \||condition \| right)", line)
        ]
        assert len(rows) > 20
        assert [row for row in rows if "`tests/" not in row] == []
