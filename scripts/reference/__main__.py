"""`make docs`: writes the generated pages into a folder; a test compares them with docs/."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from scripts.reference import commands, routes, settings, training_options

PAGES: Final[dict[str, Callable[[], str]]] = {
    "commands.md": commands.page,
    "routes.md": routes.page,
    "settings.md": settings.page,
    "training-options.md": training_options.page,
}


def write(folder: Path) -> None:
    for name, page in PAGES.items():
        (folder / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
