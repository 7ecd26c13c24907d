"""What a job has measured or compared on this machine, kept as small files for later jobs of its
project.

A job asks with everything that decides: a verdict is never used for another machine or release.
"""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from worker.storage import content_cache

_KEPT: Final = 500
"""Verdicts kept on disk: the ones used last."""


def read(folder: Path, key: Mapping[str, Any]) -> dict[str, Any] | None:
    """None if the verdict is missing or damaged."""
    file = _file(folder, key)
    try:
        verdict: Any = json.loads(file.read_bytes())
        os.utime(file)
    except (OSError, ValueError):
        return None
    return verdict if isinstance(verdict, dict) else None


def write(folder: Path, key: Mapping[str, Any], verdict: Mapping[str, Any]) -> bool:
    """Whether it is kept. On a full disk it is not, and the next job finds out again."""
    file = _file(folder, key)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(verdict))
        partial.replace(file)
        ages = sorted(folder.iterdir(), key=lambda each: each.stat().st_mtime, reverse=True)
        for old in ages[_KEPT:]:
            old.unlink(missing_ok=True)
    except OSError as error:
        sys.stderr.write(f"Cannot save the verdict for later jobs: {error}\n")
        return False
    return True


def _file(folder: Path, key: Mapping[str, Any]) -> Path:
    return folder / f"{content_cache.address(key)}.json"
