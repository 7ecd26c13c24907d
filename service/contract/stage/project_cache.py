"""Folders of caches: separate for each project, because stages write them. A stage must not load
what another project's stage has left there; and some downloads are private.

The default project's are in `<cache>` itself.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from service.contract.roles import DEFAULT_PROJECT

DOWNLOADS: Final = ("hub", "datasets")
EQUIVALENCE: Final = "equivalence"
"""Verdicts on fast paths: one small file for each kind of job and path."""
HF_HOME: Final = "huggingface"
"""What the Hub's libraries keep apart from downloads."""
_PROJECTS: Final = "projects"


def folder_of(cache_dir: Path, project_id: str) -> Path:
    return cache_dir if project_id == DEFAULT_PROJECT else cache_dir / _PROJECTS / project_id


def all_in(cache_dir: Path) -> Iterator[Path]:
    """The caches of all projects."""
    yield cache_dir
    others = cache_dir / _PROJECTS
    if others.is_dir():
        yield from (folder for folder in others.iterdir() if folder.is_dir())
