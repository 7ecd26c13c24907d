"""Patterns that make sentences and names hard to read stay rare, in every room.

What is data is not counted: fenced blocks and code spans of pages, and strings of tests, examples
and benchmarks other than docstrings.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.docs.pages import ROOT, pages

MOST: Final = 10
PATTERNS: Final = {
    "write `is not an X`": r"(?<!there )\b(is|are|was|were) no\b(?! (longer|more|less)\b)",
    "report, event, notify": r"\b(said|told)\b",
    "removed, deleted or missing": r"\bgone\b",
    "begin another sentence, or `whose`": r"\bof which\b",
    "say who: no user, no worker": r"\bnobody\b",
    "choose a verb: `parse`": r"\bdef, of(,|$)",
}
_ROOMS: Final = (
    *("service", "worker", "client", "chaos", "benchmarks", "scripts", "examples"),
    *("migrations", "tests"),
)
_WITH_DATA: Final = ("benchmarks", "examples", "tests")
_HINT: Final = re.compile(r"said|told|gone|of which|nobody|\b(is|are|was|were) no\b|def of\(", re.I)
_CODE: Final = re.compile(r"`[^`\n]*`")
_WORD: Final = re.compile(r"[\"'`(]?[\w./-]+[\"'`)]?$")
"""A string of a single word: a key, a code or a name, not a sentence."""


def _lines_of_page(text: str) -> Iterator[tuple[int, str]]:
    """Lines outside of fenced blocks, without code spans."""
    is_fenced = False
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("```"):
            is_fenced = not is_fenced
        elif not is_fenced:
            yield number, _CODE.sub("", line)


def _docstrings(tree: ast.Module) -> set[int]:
    """First lines of strings that are statements: docstrings, also those of variables."""
    return {
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


def _lines_of_code(text: str, *, has_data: bool) -> Iterator[tuple[int, str]]:
    """Comments, strings with sentences, and the names of a line, apart by commas, as words."""
    documented = _docstrings(ast.parse(text))
    names: dict[int, list[str]] = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        number = token.start[0]
        if token.type == tokenize.NAME:
            names.setdefault(number, []).append(token.string.replace("_", " "))
        elif (
            token.type == tokenize.COMMENT
            or number in documented
            or (_is_sentence(token) and not has_data)
        ):
            yield from _numbered(number, token.string)
    yield from ((number, ", ".join(words)) for number, words in names.items())


def _is_sentence(token: tokenize.TokenInfo) -> bool:
    return "STRING" in tokenize.tok_name[token.type] and not _WORD.match(token.string)


def _numbered(first: int, text: str) -> Iterator[tuple[int, str]]:
    lines = text.splitlines()
    yield from ((first + place, _CODE.sub("", line)) for place, line in enumerate(lines))


def _lines(path: Path, root: Path) -> Iterator[tuple[int, str]]:
    text = path.read_text(encoding="utf-8")
    if not _HINT.search(text):  # most files: reading their tokens would take seconds
        return iter(())
    if path.suffix == ".py":
        return _lines_of_code(text, has_data=path.relative_to(root).parts[0] in _WITH_DATA)
    return _lines_of_page(text)


def _files() -> Iterator[Path]:
    for room in _ROOMS:
        yield from sorted((ROOT / room).rglob("*.py"))
    yield from pages()


def places(pattern: str, lines: Iterable[tuple[int, str]]) -> list[tuple[int, str]]:
    expression = re.compile(pattern, re.I)
    return [(number, line.strip()[:120]) for number, line in lines if expression.search(line)]


@pytest.fixture(scope="module")
def repository() -> dict[str, list[tuple[int, str]]]:
    return {path.relative_to(ROOT).as_posix(): list(_lines(path, ROOT)) for path in _files()}


class TestPatterns:
    @pytest.mark.parametrize("advice", PATTERNS)
    def test_each_stays_rare(
        self, repository: dict[str, list[tuple[int, str]]], advice: str
    ) -> None:
        found = [
            f"{name}:{number}: {line}"
            for name, lines in repository.items()
            for number, line in places(PATTERNS[advice], lines)
        ]
        assert len(found) <= MOST, "\n".join([advice, *found])


class TestLines:
    @pytest.mark.parametrize(
        ("name", "text", "lines"),
        [
            ("service/a.py", "x = 1  # nobody reads it", [1]),
            ("service/a.py", '"""Nobody."""\nx = "Nobody may."\ny = "nobody"\n', [1, 2]),
            (
                "tests/a.py",
                'def test_nobody():\n    """Nobody."""\n    x = "Nobody may."\n',
                [1, 2],
            ),
            ("service/a.py", 'def f():\n    """One.\n\n    Nobody.\n    """\n', [4]),
            ("docs/a.md", "Nobody.\n`nobody`\n```\nnobody\n```\nnobody\n", [1, 6]),
        ],
    )
    def test_sentences_and_names_but_no_data(
        self, tmp_path: Path, name: str, text: str, lines: list[int]
    ) -> None:
        path = tmp_path / name
        path.parent.mkdir()
        path.write_text(text)
        found = places(r"\bnobody\b", _lines(path, tmp_path))
        assert sorted(number for number, _ in found) == lines

    @pytest.mark.parametrize(
        ("advice", "line", "is_found"),
        [
            ("write `is not an X`", "# This is no text.", True),
            ("write `is not an X`", "# There is no text.", False),
            ("write `is not an X`", "# It is no longer there.", False),
            ("choose a verb: `parse`", "def of(cls): ...", True),
            ("choose a verb: `parse`", "def of_job(cls): ...", False),
            ("removed, deleted or missing", "is_gone = True", True),
        ],
    )
    def test_what_counts(self, advice: str, line: str, *, is_found: bool) -> None:
        lines = _lines_of_code(line, has_data=False)
        assert bool(places(PATTERNS[advice], lines)) == is_found
