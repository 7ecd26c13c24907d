"""Modules of other people with the names of ours, of the libraries and of Python's own."""

import sys
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Final

OURS: Final = ("service", "worker", "migrations", "tests")
_MARK: Final = ".imported"
_LEAVE_MARK: Final = f"""\
import pathlib
pathlib.Path(__file__).with_suffix("{_MARK}").touch()
"""
_CODE: Final = f'{_LEAVE_MARK}raise RuntimeError(f"{{__file__}} was imported")\n'


def write_ours(folder: Path) -> None:
    """Packages with the names of our own."""
    for name in OURS:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(_CODE)


def write_all(folder: Path) -> None:
    write_ours(folder)
    names = {*packages_distributions(), *sys.stdlib_module_names, "celeryconfig", "sitecustomize"}
    for name in names - set(OURS):
        if name.isidentifier():
            (folder / f"{name}.py").write_text(_CODE)


def mark(package: Path) -> None:
    """Let a package leave a mark when it is imported, as those do that are written here."""
    with (package / "__init__.py").open("a") as file:
        file.write(_LEAVE_MARK)


def imported(folder: Path) -> list[str]:
    """Those that a process has imported."""
    return sorted(str(mark.relative_to(folder)) for mark in folder.rglob(f"*{_MARK}"))
