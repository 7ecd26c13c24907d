"""What a page of docs/guides asks its reader to save, to run and to expect."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.docs.pages import ROOT, blocks

FOLDER: Final = ROOT / "docs/guides"
_SAVED: Final = re.compile(
    r"Save\s+this\s+as\s+`(?P<name>[\w.]+)`[^`]*?:\n\n```\w+\n(?P<text>.*?)^```$", re.M | re.S
)
_ERROR_ROW: Final = re.compile(r"^\| (?P<ticks>``?) ?(?P<message>.+?) ?(?P=ticks) \| ", re.M)


@dataclass(frozen=True)
class Guide:
    task: str
    text: str

    @classmethod
    def read(cls, task: str) -> "Guide":
        return cls(task, (FOLDER / f"{task}.md").read_text(encoding="utf-8"))

    @property
    def files(self) -> dict[str, str]:
        """Name → content: the data, the spec and the program."""
        return {match["name"]: match["text"] for match in _SAVED.finditer(self.text)}

    def file(self, suffix: str) -> tuple[str, str]:
        """The only file with this suffix: its name and content."""
        [found] = [item for item in self.files.items() if item[0].endswith(suffix)]
        return found

    @property
    def commands(self) -> list[str]:
        return "".join(blocks(self.text, "bash")).splitlines()

    @property
    def output(self) -> str:
        """What the program prints."""
        [found] = blocks(self.text, "text")
        return found

    @property
    def errors(self) -> list[str]:
        table = self.text.partition("## If the job fails")[2]
        return [match["message"] for match in _ERROR_ROW.finditer(table)]

    def save(self, folder: Path) -> None:
        for name, text in self.files.items():
            (folder / name).write_text(text, encoding="utf-8")


TASKS: Final = tuple(sorted(page.stem for page in FOLDER.glob("*.md") if page.stem != "index"))
