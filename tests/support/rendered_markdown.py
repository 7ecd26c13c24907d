"""What GitHub's renderer makes of Markdown."""

from html.parser import HTMLParser
from typing import Any

import cmarkgfm
from cmarkgfm.cmark import Options


def elements(markdown: str) -> list[str]:
    """The elements of the page, raw HTML included."""
    return _parsed(markdown).elements


def text_of(markdown: str) -> str:
    return _parsed(markdown).text.strip()


def _parsed(markdown: str) -> "Page":
    rendered = cmarkgfm.github_flavored_markdown_to_html(markdown, options=Options.CMARK_OPT_UNSAFE)
    page = Page()
    page.feed(rendered)
    return page


class Page(HTMLParser):
    """The elements of a page in their order, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.elements.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data
