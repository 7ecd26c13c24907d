"""Checks the built website: every page can be searched, and none loads anything from other hosts.

`make site` runs it as `python scripts/check_site.py docs site`.
"""

import json
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

_LOADED: Final = {"script": "src", "img": "src", "iframe": "src", "link": "href"}


class _Resources(HTMLParser):
    """Addresses that a browser loads when it opens the page; links to follow are not among them."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        address = dict(attrs).get(_LOADED.get(tag, ""))
        if address:
            self.found.append(address)


def foreign_resources(site: Path) -> list[str]:
    faults = []
    for page in sorted(site.rglob("*.html")):
        resources = _Resources()
        resources.feed(page.read_text(encoding="utf-8"))
        faults += [
            f"{page}: loads {address}"
            for address in resources.found
            if "//" in address.removeprefix("file://")
        ]
    return faults


def missing_from_search(docs: Path, site: Path) -> list[str]:
    index = json.loads((site / "search.json").read_text(encoding="utf-8"))
    searched = {item["location"].partition("#")[0] for item in index["items"]}
    pages = {page.relative_to(docs).with_suffix(".html").as_posix() for page in docs.rglob("*.md")}
    return [f"{page}: not in the search index" for page in sorted(pages - searched)]


def main(docs: Path, site: Path) -> int:
    faults = foreign_resources(site) + missing_from_search(docs, site)
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:3])))
