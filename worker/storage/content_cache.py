"""A cache of prepared data, addressed by its inputs; built once, shared by all jobs of a
project."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.contract.stage import prepared_data
from worker.storage import atomic_dir

Counts = dict[str, dict[str, int]]
_COUNTS = "counts.json"


@dataclass(frozen=True)
class Entry:
    folder: Path
    splits: Counts
    found: bool
    """Whether it existed already."""


def address(parts: Mapping[str, Any]) -> str:
    """sha256 over `parts` as canonical JSON."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def find(root: Path, key: str) -> Entry | None:
    """The entry `key` under `root`, if there is an intact one."""
    folder = root / key
    with prepared_data.locked(root, key):
        if not atomic_dir.verify(folder):
            return None
        return Entry(folder, json.loads((folder / _COUNTS).read_text()), found=True)


def get_or_build(root: Path, key: str, build: Callable[[Path], Counts]) -> Entry:
    """The entry `key` under `root`; `build` fills its folder if it is missing or damaged.

    One process builds while the others wait; if it dies, the next one builds.
    """
    folder = root / key
    with prepared_data.locked(root, key):
        found = atomic_dir.verify(folder)
        if not found:
            with atomic_dir.writing(folder) as partial:
                counts = build(partial)
                (partial / _COUNTS).write_text(json.dumps(counts))
        return Entry(folder, json.loads((folder / _COUNTS).read_text()), found)
