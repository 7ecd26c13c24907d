"""A test file holds tests; what several of them use lives in a module of its own."""

import ast
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def imported_test_modules(file: Path) -> list[str]:
    """Modules named `test_…` that this file imports, wherever in it the import is."""
    modules: list[str] = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            modules += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return [
        module
        for module in modules
        if module.startswith("tests.") and module.split(".")[-1].startswith("test_")
    ]


def test_no_test_file_serves_as_a_library() -> None:
    files = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "chaos").rglob("*.py")]
    assert len(files) > 100
    imports = {
        str(file.relative_to(ROOT)): found
        for file in files
        if (found := imported_test_modules(file))
    }
    assert imports == {}


def test_what_mutants_are_made_of_is_there() -> None:
    """mutmut ignores a module that has moved, and ends if pytest does not find a test."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mutmut"]
    tests = settings["pytest_add_cli_args_test_selection"][2:]
    named = [*settings["only_mutate"], *tests]
    assert [each for each in named if not is_there(*each.split("::"))] == []


def is_there(path: str, *names: str) -> bool:
    """Whether a file of this pattern exists and defines the class, and that the function."""
    if not any(ROOT.glob(path)):
        return False
    body = ast.parse((ROOT / path).read_text()).body if names else []
    for name in names:
        found = [node for node in body if getattr(node, "name", None) == name]
        if not found:
            return False
        body = getattr(found[0], "body", [])
    return True
