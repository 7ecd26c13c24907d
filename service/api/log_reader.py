"""Reads a part of a growing text file by bytes, without splitting a character."""

from pathlib import Path
from typing import Final

from service.api.schemas.history import LogPart

LARGEST_PART: Final = 1024**2
_LONGEST_CHARACTER: Final = 4


def read_part(path: Path, offset: int, limit: int, *, ended: bool) -> LogPart:
    """At most `limit` bytes from `offset`; a missing file counts as empty."""
    size = path.stat().st_size if path.is_file() else 0
    data = b""
    if offset < size:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read(min(limit, size - offset))
        if not (ended and offset + len(data) == size):
            data = _whole(data)
    following = offset + len(data)
    return LogPart(
        content=data.decode("utf-8", "replace"),
        offset=offset,
        next_offset=following,
        size=size,
        eof=ended and following >= size,
    )


def _whole(data: bytes) -> bytes:
    """Without the first bytes of an incomplete character at the end."""
    for back in range(1, min(_LONGEST_CHARACTER, len(data)) + 1):
        byte = data[-back]
        if byte < 0x80:
            return data
        if byte >= 0xC0:  # a first byte, which tells how many follow
            wanted = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data if back >= wanted else data[:-back]
    return data
