"""Commands print through `service/cli/terminal/output.py` alone, which escapes what it prints."""

import ast
from collections.abc import Iterator
from pathlib import Path

CLI = Path(__file__).resolve().parents[2] / "service" / "cli"
PRINTING = {"typer.echo", "typer.secho", "click.echo", "click.secho", "print", "Console"} | {
    f"sys.{stream}.{method}"
    for stream in ("stdout", "stderr")
    for method in ("write", "writelines")
}


def printing(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and (name := ast.unparse(node.func)) in PRINTING:
            yield name


def test_only_output_prints() -> None:
    files = {str(file.relative_to(CLI)): file.read_text() for file in CLI.rglob("*.py")}
    assert list(printing(files.pop("terminal/output.py")))
    assert not {name: found for name, text in files.items() if (found := [*printing(text)])}


def test_all_ways_of_printing_are_found() -> None:
    source = "typer.echo(x)\nprint(y)\nsys.stderr.write(z)\nConsole(file=a).print(b)\n"
    assert set(printing(source)) == {"typer.echo", "print", "sys.stderr.write", "Console"}
