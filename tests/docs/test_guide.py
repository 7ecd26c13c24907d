"""CONTRIBUTING.md says where each behaviour is: the files and names in its tables exist."""

import ast
import re

import pytest

from tests.docs.pages import ROOT

_ROW = re.compile(r"^\| (?P<what>[^|]+) \| (?P<where>`.*) \|$", re.M)
_PLACE = re.compile(r"`([\w./]+)`(?: \(`(\w+)`\))?")
ROWS = {
    match["what"]: _PLACE.findall(match["where"])
    for match in _ROW.finditer(
        (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Where is it?")[2]
    )
}


def defined_in(source: str) -> set[str]:
    tree = ast.parse(source)
    definitions = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    named = {node.name for node in tree.body if isinstance(node, definitions)}
    targets: list[ast.expr] = [node.target for node in tree.body if isinstance(node, ast.AnnAssign)]
    targets += [name for node in tree.body if isinstance(node, ast.Assign) for name in node.targets]
    return named | {target.id for target in targets if isinstance(target, ast.Name)}


class TestWhereIsIt:
    def test_the_tables_answer_what_a_newcomer_asks(self) -> None:
        assert {
            "a job is submitted",
            "a lease is renewed",
            "a hung training is noticed",
            "a checkpoint becomes durable",
            "FSDP is set up",
            "the QA windows are cut",
            "a 422 is worded",
            "a training option is added",
            "metrics are sent to MLflow",
        } <= ROWS.keys()

    @pytest.mark.parametrize("wing", ["service", "worker"])
    def test_each_room_answers_a_question(self, wing: str) -> None:
        answered = {path for places in ROWS.values() for path, _ in places}
        rooms = {file.parent.name for file in (ROOT / wing).glob("*/*.py")}
        assert len(rooms) > 5
        assert rooms <= {path.split("/")[1] for path in answered if path.startswith(f"{wing}/")}

    def test_there_are_forty_questions(self) -> None:
        assert len(ROWS) >= 40

    @pytest.mark.parametrize("what", ROWS)
    def test_each_place_exists(self, what: str) -> None:
        assert ROWS[what]
        for path, name in ROWS[what]:
            assert (ROOT / path).exists(), path
            if name:
                assert name in defined_in((ROOT / path).read_text(encoding="utf-8")), name
