"""`finetune docs` reads the written documentation without internet."""

from pathlib import Path

import pytest

from tests.cli.conftest import Cli

DOCS = Path(__file__).resolve().parents[2] / "docs"


class TestDocs:
    def test_lists_every_page_with_its_title(self, cli: Cli) -> None:
        outcome = cli("docs")
        rows = dict(line.split(maxsplit=1) for line in outcome.out.splitlines()[1:])
        assert rows.keys() == {
            page.relative_to(DOCS).with_suffix("").as_posix() for page in DOCS.rglob("*.md")
        }
        assert rows["job-lifecycle"].strip() == "Job lifecycle"
        assert rows["decisions/0008-no-process-outlives-up"].strip() == (
            "0008. No process outlives finetune up"
        )

    @pytest.mark.parametrize("name", ["tasks", "tasks.md", "Tasks"])
    def test_prints_a_page_as_it_is_into_a_pipe(self, cli: Cli, name: str) -> None:
        assert cli("docs", name).out == (DOCS / "tasks.md").read_text(encoding="utf-8")

    def test_a_unique_part_of_a_name_is_enough(self, cli: Cli) -> None:
        assert cli("docs", "0004").out.startswith("# 0004. Resume is exact\n")

    @pytest.mark.parametrize(
        ("name", "hint"),
        [
            ("chekpoints", "did you mean checkpoints?"),
            ("decisions/001", "did you mean decisions/0010-"),
            ("nothing like it", "`finetune docs` lists all pages."),
        ],
    )
    def test_an_unknown_page_is_wrong_usage(self, cli: Cli, name: str, hint: str) -> None:
        outcome = cli("docs", name)
        assert (outcome.status, outcome.out) == (2, "")
        assert f"there is no page {name!r}" in outcome.err
        assert hint in outcome.err

    def test_finds_lines_with_all_of_the_words(self, cli: Cli) -> None:
        outcome = cli("docs", "--search", "RFC 7396 merge")
        [_, row] = outcome.out.splitlines()
        page, line, text = row.split(maxsplit=2)
        shown = (DOCS / f"{page}.md").read_text(encoding="utf-8").splitlines()[int(line) - 1]
        assert page == "routes"
        assert " ".join(text.strip("… ").split()) in " ".join(shown.split())
        assert "RFC 7396" in text

    def test_searches_one_page_if_it_is_named(self, cli: Cli) -> None:
        found = cli("docs", "cli", "--search", "workers").out.splitlines()[1:]
        assert found
        assert all(row.startswith("cli ") for row in found)

    def test_nothing_found_is_a_failure(self, cli: Cli) -> None:
        outcome = cli("docs", "--search", "no such word anywhere xyzzy")
        assert (outcome.status, outcome.out) == (1, "")
