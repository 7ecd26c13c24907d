"""Links between the pages lead somewhere, on GitHub as on the website."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, anchors, broken_links, name_of, pages

PAGES = {name_of(page): page for page in pages()}


class TestLinks:
    @pytest.mark.parametrize("name", PAGES)
    def test_every_relative_link_leads_to_a_file_and_heading(self, name: str) -> None:
        assert broken_links(PAGES[name]) == []

    @pytest.mark.parametrize("name", [name for name in PAGES if name.startswith("docs/")])
    def test_pages_of_the_website_link_to_no_file_outside_of_it(self, name: str) -> None:
        folder, text = PAGES[name].parent, PAGES[name].read_text(encoding="utf-8")
        targets = [(folder / link).resolve() for link in re.findall(r"\]\((\.\.[^)#]*)", text)]
        assert [target for target in targets if not target.is_relative_to(ROOT / "docs")] == []

    def test_every_page_of_the_website_is_in_its_navigation(self) -> None:
        named = re.findall(r"^ +- (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
        assert sorted(f"docs/{name}" for name in named) == sorted(
            name for name in PAGES if name.startswith("docs/")
        )

    def test_every_decision_is_in_their_index(self) -> None:
        index = (ROOT / "docs/decisions/index.md").read_text(encoding="utf-8")
        for page in (ROOT / "docs/decisions").glob("0*.md"):
            title = page.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
            number, _, name = title.partition(". ")
            assert f"| [{number}]({page.name}) | {name} |" in index

    def test_the_readme_is_short(self) -> None:
        assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


class TestTheCheck:
    """It would notice what it is for."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        (tmp_path / "other.md").write_text("# Other\n\n## `finetune up`, twice\n\n## A (b.c) d\n")
        return tmp_path

    @pytest.mark.parametrize(
        "link", ["missing.md", "other.md#missing", "#missing", "other.md#A-bc-d"]
    )
    def test_names_a_broken_link(self, folder: Path, link: str) -> None:
        (folder / "page.md").write_text(f"# Page\n\nSee [there]({link}).\n")
        assert broken_links(folder / "page.md") == [link]

    @pytest.mark.parametrize(
        "link", ["other.md", "other.md#finetune-up-twice", "other.md#a-bc-d", "#page", "http://x.y"]
    )
    def test_accepts_a_good_one(self, folder: Path, link: str) -> None:
        (folder / "page.md").write_text(f"# Page\n\nSee [`there`]({link}).\n")
        assert broken_links(folder / "page.md") == []

    def test_reads_no_link_in_a_code_block(self, folder: Path) -> None:
        (folder / "page.md").write_text("# Page\n\n```\n# no heading\n[x](missing.md)\n```\n")
        assert broken_links(folder / "page.md") == []
        assert anchors((folder / "page.md").read_text()) == {"page"}

    def test_numbers_repeated_headings(self) -> None:
        assert anchors("# A\n\n## B\n\n## B\n") == {"a", "b", "b-1"}
