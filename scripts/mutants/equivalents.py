"""Mutants that no test can notice, each with the reason: `equivalent.txt`, reviewed by hand."""

from functools import cache
from pathlib import Path
from typing import Final

from scripts.mutants.operators import Mutant

FILE: Final = Path(__file__).with_name("equivalent.txt")

Key = tuple[str, str, str]


def key(mutant: Mutant) -> Key:
    """Without the line number, which other changes move."""
    return mutant.path, mutant.before, mutant.after


@cache
def load() -> dict[Key, str]:
    """The reason of each."""
    blocks = FILE.read_text().split("\n\n")
    return dict(_entry(block) for block in blocks if not block.startswith("#"))


def _entry(block: str) -> tuple[Key, str]:
    path, before, after, *reason = block.strip().splitlines()
    if not (before.startswith("- ") and after.startswith("+ ") and reason):
        raise ValueError(f"expected a path, '- …', '+ …' and a reason:\n{block}")
    return (path, before[2:], after[2:]), " ".join(reason)
