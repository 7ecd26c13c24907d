"""Files that hold a secret: readable by their owner alone."""

import os
import secrets
from pathlib import Path


def write(path: Path, content: str) -> None:
    """Replace the file atomically: a reader finds the whole old content or the whole new one."""
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(content)
    partial.replace(path)
