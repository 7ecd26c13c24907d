"""`own_packages.python` makes the command line of every Python process that we start: with
`python -m` the current folder, which may be anybody's, would come first on the path."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
_PLACE: Final = Path("service/system/own_packages.py")


def _uses(tree: ast.AST) -> Iterator[str]:
    """Where sys.executable begins a command line that is not isolated (-I)."""
    isolated = {
        id(words.elts[0])
        for words in ast.walk(tree)
        if isinstance(words, ast.List | ast.Tuple) and len(words.elts) > 1
        if isinstance(words.elts[1], ast.Constant) and words.elts[1].value == "-I"
    }
    # The program that replaces this process; its command line is the second argument.
    replaced = {
        id(call.args[0])
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and ast.unparse(call.func).startswith("os.exec")
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or node.attr != "executable":
            continue
        if id(node) not in isolated | replaced and ast.unparse(node) == "sys.executable":
            yield f"line {node.lineno}"


def _found(code: str) -> list[str]:
    return list(_uses(ast.parse(code))) if "executable" in code else []


class TestPythonProcesses:
    def test_one_place_makes_their_command_lines(self) -> None:
        files = [*(ROOT / "service").rglob("*.py"), *(ROOT / "worker").rglob("*.py")]
        found = {
            str(path.relative_to(ROOT)): uses
            for path in files
            if (uses := _found(path.read_text(encoding="utf-8")))
        }
        assert found.keys() == {str(_PLACE)}, found

    def test_others_would_be_found(self) -> None:
        assert _found('run([sys.executable, "-m", "worker"])') == ["line 1"]
        assert _found('command = ("nice", sys.executable, "-I")') == ["line 1"]
        assert _found('words = [sys.executable, *("-P", "-m", name)]') == ["line 1"]
        assert _found("python = sys.executable") == ["line 1"]

    def test_isolated_ones_and_the_programs_of_exec_are_not(self) -> None:
        assert _found('run([sys.executable, "-I", "-S", "-c", ""])') == []
        assert _found("os.execv(sys.executable, own_packages.python(name))") == []
