"""Sends files: streamed, in ranges, with the hash of the content as ETag."""

import errno
import os
import re
from pathlib import Path
from typing import Any, BinaryIO, Final

from fastapi import Request, Response
from fastapi.responses import FileResponse
from starlette.types import Receive, Scope, Send

from service.api.problems.errors import RangeNotSatisfiableError
from service.errors import ArtifactNotFoundError
from service.system.safe_files import open_inside

_MOST_RANGES: Final = 16
_RANGES: Final = re.compile(r"bytes=\s*(\d{0,18}-\d{0,18}(\s*,\s*\d{0,18}-\d{0,18})*)", re.I)
_BINARY: Final = {"schema": {"type": "string", "format": "binary"}}
_HEADERS: Final = {
    "ETag": {
        "required": True,
        "description": "The sha256 of the whole content, quoted.",
        "schema": {"type": "string"},
    }
}
DOWNLOAD_RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "The whole content.",
        "content": {"application/octet-stream": _BINARY},
        "headers": {**_HEADERS},
    },
    206: {
        "description": "The requested ranges.",
        "content": {"application/octet-stream": _BINARY, "multipart/byteranges": _BINARY},
        "headers": {**_HEADERS},
    },
    304: {"description": "The client has it already (If-None-Match).", "headers": {**_HEADERS}},
}


class _OpenFileResponse(FileResponse):
    """Sends a file that is already open: what its path leads to may have changed since."""

    def __init__(self, file: BinaryIO, **options: Any) -> None:
        super().__init__(f"/dev/fd/{file.fileno()}", **options)
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._file.close()


def send_file(request: Request, root: Path, path: str, name: str, sha256: str) -> Response:
    """The regular file `path` under `root`, or the part of it that the request wants. Raises
    RangeNotSatisfiableError."""
    try:
        file = open_inside(root, path)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        raise ArtifactNotFoundError("The file is no longer on this server.") from error
    return send_open(request, file, name, sha256)


def send_open(request: Request, file: BinaryIO, name: str, sha256: str) -> Response:
    """As `send_file`; closes the file."""
    headers = {"ETag": f'"{sha256}"', "X-Content-Type-Options": "nosniff"}
    if sha256 in request.headers.get("if-none-match", ""):
        file.close()
        return Response(status_code=304, headers=headers)
    stat = os.fstat(file.fileno())
    try:
        _check_range(request.headers.get("range"), stat.st_size)
    except RangeNotSatisfiableError:
        file.close()
        raise
    return _OpenFileResponse(
        file,
        headers=headers,
        media_type="application/octet-stream",
        filename=name.rpartition("/")[2],
        stat_result=stat,
    )


def _check_range(header: str | None, size: int) -> None:
    """Refuse what the file response would refuse in plain text."""
    if header is None:
        return
    match = _RANGES.fullmatch(header.strip())
    ranges = match.group(1).split(",") if match else []
    if len(ranges) > _MOST_RANGES:
        raise RangeNotSatisfiableError(f"Ask for at most {_MOST_RANGES} ranges.")
    if not ranges or not all(_fits(part.strip(), size) for part in ranges):
        raise RangeNotSatisfiableError(f"The content has {size} bytes.")


def _fits(part: str, size: int) -> bool:
    start, _, end = part.partition("-")
    if not start:
        return bool(end) and int(end) > 0 and size > 0
    return int(start) < size and (not end or int(start) <= int(end))
