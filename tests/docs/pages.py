"""The Markdown pages of the repository: their headings, links and examples."""

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
_FENCED = re.compile(r"^(?P<fence>`{3,})(?P<language>\w*)\n(?P<code>.*?)^(?P=fence)$", re.M | re.S)
_HEADING = re.compile(r"^#{1,6} (.+)$", re.M)
_LINK = re.compile(r"\[(?:[^\[\]]|`[^`]*`)*\]\(([^()\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")


def pages() -> list[Path]:
    """Every page that people read; those of data sets and templates among them."""
    folders = [ROOT / name for name in ("docs", "examples", ".github")]
    nested = [page for folder in folders for page in folder.rglob("*.md")]
    return sorted([*ROOT.glob("*.md"), *nested])


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(text: str, language: str) -> list[str]:
    """The content of the fenced blocks of this language."""
    return [match["code"] for match in _FENCED.finditer(text) if match["language"] == language]


def prose(text: str) -> str:
    """The text without fenced blocks."""
    return _FENCED.sub("", text)


def code_spans(text: str) -> list[str]:
    return _CODE.findall(prose(text))


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives to the headings, a number appended to repeated ones."""
    found: set[str] = set()
    for heading in _HEADING.findall(prose(text)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        candidates = [slug, *(f"{slug}-{number}" for number in range(1, 100))]
        found.add(next(name for name in candidates if name not in found))
    return found


def broken_links(page: Path) -> list[str]:
    """Relative links to a file or heading that does not exist. Links to other hosts are not
    followed: the tests need no network."""
    broken = []
    for link in _LINK.findall(prose(page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (
            anchor and anchor not in anchors(target.read_text(encoding="utf-8"))
        ):
            broken.append(link)
    return broken
