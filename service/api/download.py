"""Sends files: streamed, in ranges, with the hash of the content as ETag."""

import re
from pathlib import Path
from typing import Any, Final

from fastapi import Request, Response
from fastapi.responses import FileResponse

from service.api.errors import RangeNotSatisfiableError
from service.errors import ArtifactNotFoundError

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


def send_file(request: Request, path: Path, name: str, sha256: str) -> Response:
    """The file, or the part of it that the request wants. Raises RangeNotSatisfiableError."""
    headers = {"ETag": f'"{sha256}"', "X-Content-Type-Options": "nosniff"}
    if sha256 in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    if not path.is_file():
        raise ArtifactNotFoundError("The file is no longer on this server.")
    stat = path.stat()
    _check_range(request.headers.get("range"), stat.st_size)
    return FileResponse(
        path,
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
    if not ranges or not all(_fits(part.strip(), size) for part in ranges):
        raise RangeNotSatisfiableError(f"The content has {size} bytes.")


def _fits(part: str, size: int) -> bool:
    start, _, end = part.partition("-")
    if not start:
        return bool(end) and int(end) > 0 and size > 0
    return int(start) < size and (not end or int(start) <= int(end))
