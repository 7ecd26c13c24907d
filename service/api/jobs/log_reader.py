"""Reads a part of a growing text file by bytes, without splitting a character."""

import errno
import os
from pathlib import Path
from typing import Final

from service.api.schemas.history import LogPart
from service.system.safe_files import open_inside

LARGEST_PART: Final = 1024**2
_LONGEST_CHARACTER: Final = 4


def read_part(folder: Path, name: str, offset: int, limit: int, *, ended: bool) -> LogPart:
    """At most `limit` bytes from `offset`; a file that is missing or a link counts as empty."""
    size, data = 0, b""
    try:
        with open_inside(folder, name) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(min(offset, size))
            data = file.read(max(0, min(limit, size - offset)))
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
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
