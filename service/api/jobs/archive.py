"""Sends files as one tar archive that is built while it is sent, without a copy of it anywhere."""

import errno
import os
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from fastapi.responses import StreamingResponse
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from service.system.safe_files import open_inside

_BLOCK: Final = 1024**2
_TAR: Final = "application/x-tar"
_OCTETS: Final = "application/octet-stream"
_RECORD: Final = tarfile.BLOCKSIZE


@dataclass(frozen=True)
class Member:
    name: str
    """Its name in the archive's folder."""
    path: str
    """On disk, relative to the root."""
    bytes: int


class Archive:
    """All files are opened first, so that an archive whose files are removed meanwhile is still
    sent in full. Its bytes depend only on the arguments and the files' contents."""

    def __init__(self, root: Path, top: str, members: Sequence[Member], modified: float) -> None:
        """`top`: the archive's only folder. OSError if a file is missing, is a link, lies outside
        of the root or has another size."""
        self._top = top
        self._members = members
        self._modified = int(modified)
        self._open = ExitStack()
        try:
            self._streams = [self._opened(root, member) for member in members]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the files; may be called twice."""
        self._open.close()

    @property
    def size(self) -> int:
        parts = (len(self._header(each)) + _padded(each.bytes) for each in self._members)
        return sum(parts) + 2 * _RECORD

    def content(self) -> Iterator[bytes]:
        """At most a mebibyte at a time; closes the files at the end."""
        with self._open:
            for member, stream in zip(self._members, self._streams, strict=True):
                yield self._header(member)
                left = member.bytes
                while left:
                    part = stream.read(min(left, _BLOCK))
                    if not part:  # the connection breaks, so that the client notices
                        raise OSError(f"{member.name} has become shorter")
                    left -= len(part)
                    yield part
                yield bytes(_padded(member.bytes) - member.bytes)
            yield bytes(2 * _RECORD)

    def _opened(self, root: Path, member: Member) -> BinaryIO:
        stream = self._open.enter_context(open_inside(root, member.path))
        if os.fstat(stream.fileno()).st_size != member.bytes:
            raise OSError(f"{member.path} has another size")
        return stream

    def _header(self, member: Member) -> bytes:
        info = tarfile.TarInfo(f"{self._top}/{member.name}")
        info.size, info.mtime, info.mode = member.bytes, self._modified, 0o644
        return info.tobuf(tarfile.GNU_FORMAT, "utf-8")


class ArchiveResponse(StreamingResponse):
    """Closes the archive's files at the end, also when the client has disconnected. A client that
    accepts only `application/octet-stream`, as generated clients do, gets that type."""

    def __init__(self, archive: Archive, *, filename: str, etag: str) -> None:
        headers = {
            "Content-Length": str(archive.size),
            "Content-Disposition": f'attachment; filename="{filename}"',
            "ETag": f'"{etag}"',
            "Vary": "Accept",
            "X-Content-Type-Options": "nosniff",
        }
        super().__init__(archive.content(), headers=headers, media_type=_TAR)
        self._archive = archive

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if Headers(scope=scope).get("accept") == _OCTETS:
            self.headers["Content-Type"] = _OCTETS
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._archive.close()


def archive_responses(folder: str, etag: str) -> Mapping[int | str, dict[str, Any]]:
    """For the OpenAPI document: the archive's `folder`, and what its `etag` is."""
    return {
        200: {
            "description": f"A tar archive with one folder, `{folder}`.",
            "content": {
                media_type: {"schema": {"type": "string", "format": "binary"}}
                for media_type in (_TAR, _OCTETS)
            },
            "headers": {
                "ETag": {"required": True, "description": etag, "schema": {"type": "string"}}
            },
        }
    }


def lacks_descriptors(error: OSError) -> bool:
    """Whether the error is about the server (too many open files) and not about this file."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


def _padded(size: int) -> int:
    return -(-size // _RECORD) * _RECORD
