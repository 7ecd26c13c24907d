"""Prints the folders of tests that belong to what differs from main, for `make test CHANGED=1`."""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
_OTHER_NAMES: Final = {
    "client/finetune_client": "client",
    "docs": "docs",
    "migrations": "migrations",
}
"""The tests of folders that are not below service/ or worker/."""


def changed_files() -> list[str]:
    """Since the branch left main, also what is not committed or not yet tracked by git."""
    base = _git("merge-base", "HEAD", "main").strip()
    untracked = _git("ls-files", "--others", "--exclude-standard")
    return [*_git("diff", "--name-only", base).splitlines(), *untracked.splitlines()]


def folders_of(files: Iterable[str], root: Path = ROOT) -> list[str]:
    """The folders and files of tests to run; `tests` alone if a change may touch all of them."""
    found = {_tests_of(Path(file), root) for file in files}
    return ["tests"] if "tests" in found else sorted(found)


def _tests_of(file: Path, root: Path) -> str:
    """The deepest folder below tests/ that mirrors the file's, or tests/ itself."""
    if file.suffix == ".md" and file.parts[0] != "tests":
        return "tests/docs"
    if file.parts[0] == "tests":
        return _changed_test(file, root)
    for folder, name in _OTHER_NAMES.items():
        if file.is_relative_to(folder):
            return f"tests/{name}"
    if file.parts[0] not in ("service", "worker"):
        # chaos, benchmarks and examples have tests under their own names, or none.
        own = Path("tests", file.parts[0])
        return str(own) if len(file.parts) > 1 and (root / own).is_dir() else "tests"
    mirrored = Path("tests", *file.parts[1:-1])
    while not (root / mirrored).is_dir():
        mirrored = mirrored.parent
    return str(mirrored)


def _changed_test(file: Path, root: Path) -> str:
    """Its folder, in which others may use it; what all folders use is in tests/ or its support."""
    if file.parts[1] == "support":
        return "tests"
    if file.name.startswith("test_") and (root / file).exists():
        return str(file)
    return str(file.parent) if (root / file.parent).is_dir() else "tests"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout


if __name__ == "__main__":
    folders = folders_of(changed_files())
    if not folders:
        sys.exit("nothing differs from main")
    print(*folders)
