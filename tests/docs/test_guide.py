"""CONTRIBUTING.md tells where each behaviour is: the files and names in its table exist."""

import ast
import re

import pytest

from tests.docs.pages import ROOT

_ROW = re.compile(r"^\| (?P<what>[^|`]+) \| (?P<where>`.*) \|$", re.M)
_PLACE = re.compile(r"`([\w./]+)`(?: \(`(\w+)`\))?")
ROWS = {
    match["what"]: _PLACE.findall(match["where"])
    for match in _ROW.finditer(
        (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Where is it?")[2]
    )
}


def defined_in(source: str) -> set[str]:
    tree = ast.parse(source)
    named = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    targets: list[ast.expr] = [node.target for node in tree.body if isinstance(node, ast.AnnAssign)]
    targets += [name for node in tree.body if isinstance(node, ast.Assign) for name in node.targets]
    return named | {target.id for target in targets if isinstance(target, ast.Name)}


class TestWhereIsIt:
    def test_the_table_answers_what_a_newcomer_asks(self) -> None:
        assert {
            "a lease is renewed",
            "a hung training is noticed",
            "a checkpoint becomes durable",
            "FSDP is set up",
            "the QA windows are cut",
            "a 422 is worded",
            "a training option is added",
            "MLflow is told",
        } <= ROWS.keys()

    @pytest.mark.parametrize("what", ROWS)
    def test_each_place_exists(self, what: str) -> None:
        assert ROWS[what]
        for path, name in ROWS[what]:
            assert (ROOT / path).exists(), path
            if name:
                assert name in defined_in((ROOT / path).read_text(encoding="utf-8")), name
