"""`make site` refuses a website that needs other hosts, or that its search does not cover."""

import json
from pathlib import Path

import pytest

from scripts.check_site import foreign_resources, main, missing_from_search

PAGE = '<link rel="stylesheet" href="../style.css"><script src="search.js"></script>{}'


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    (tmp_path / "docs/decisions").mkdir(parents=True)
    for name in ("index.md", "decisions/0001-one.md"):
        (tmp_path / "docs" / name).write_text("# A page\n")
    return tmp_path / "docs"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "site/decisions").mkdir(parents=True)
    link = '<a href="https://example.org/">to follow</a>'
    for name in ("index.html", "decisions/0001-one.html"):
        (tmp_path / "site" / name).write_text(PAGE.format(link))
    write_search(tmp_path / "site", "index.html", "decisions/0001-one.html#context")
    return tmp_path / "site"


def write_search(site: Path, *locations: str) -> None:
    items = [{"location": location} for location in locations]
    (site / "search.json").write_text(json.dumps({"items": items}))


class TestCheckSite:
    def test_accepts_links_to_other_hosts_that_are_only_followed(
        self, docs: Path, site: Path
    ) -> None:
        assert main(docs, site) == 0

    @pytest.mark.parametrize(
        "tag",
        [
            '<script src="https://cdn.example.org/x.js"></script>',
            '<link rel="stylesheet" href="//fonts.example.org/css">',
            '<img src="http://example.org/x.png">',
        ],
    )
    def test_names_what_a_page_loads_from_elsewhere(
        self, docs: Path, site: Path, tag: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        page = site / "decisions/0001-one.html"
        page.write_text(PAGE.format(tag))
        address = tag.split('"')[-2]
        assert foreign_resources(site) == [f"{page}: loads {address}"]
        assert main(docs, site) == 1
        assert address in capsys.readouterr().err

    def test_names_a_page_that_the_search_does_not_cover(self, docs: Path, site: Path) -> None:
        write_search(site, "index.html")
        assert missing_from_search(docs, site) == [
            "decisions/0001-one.html: not in the search index"
        ]
        assert main(docs, site) == 1
