"""How many examples an uploaded file has, as far as the hyperparameters depend on it."""

from pathlib import Path
from typing import Final

from service.settings import Settings
from service.store.database import Database
from service.store.files import files
from service.store.scope import Scope

MOST_READ: Final = 64 * 1024**2
"""Bytes; the examples of the rest are estimated from these."""
_CHUNK: Final = 1024**2
_BINARY: Final = b"PAR1"


def count(settings: Settings, database: Database, scope: Scope, file_id: str) -> int | None:
    """Lines of the file that are not empty. None if the lines are not examples, as in Parquet or in
    one JSON array, and if the project has no such file."""
    if not files.is_id(file_id):
        return None
    with database.read() as session:
        is_there = bool(files.existing(session, scope, [file_id]))
    try:
        return count_lines(settings.files_dir / file_id) if is_there else None
    except OSError:  # removed meanwhile
        return None


def count_lines(path: Path) -> int | None:
    lines = read = 0
    rest = b""
    with path.open("rb") as file:
        size = path.stat().st_size
        while read < MOST_READ and (chunk := file.read(_CHUNK)):
            if not read and chunk.lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"[", _BINARY)):
                return None
            read += len(chunk)
            *whole, rest = (rest + chunk).split(b"\n")
            lines += sum(1 for line in whole if line.strip())
            # A line may be longer than memory: read only enough to know that it is not empty.
            rest = rest.lstrip()[:1]
    lines += bool(rest)
    return lines if read >= size else round(lines * size / read)
