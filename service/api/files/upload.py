"""Writes a multipart body to disk as it arrives: a file and short fields, all or nothing."""

import errno
import hashlib
import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from anyio import to_thread
from fastapi import Request
from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header
from starlette.requests import ClientDisconnect

from service.api.faults.redaction import cut
from service.api.files import upload_locks
from service.api.problems.errors import (
    BodyTooLargeError,
    ClientClosedError,
    InsufficientStorageError,
    InvalidMultipartError,
    InvalidRequestError,
    UnsupportedMediaTypeError,
)
from service.api.schemas.problems import Fault
from service.jobs.disk_space import Space
from service.system.durable_files import sync_folder

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

# Written at once in a thread; the 64 KiB pieces of the network would need more switches.
_WRITE_BYTES: Final = 1024**2
_LONGEST_FIELD: Final = 1024
_MOST_PARTS: Final = 20
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_LONGEST_FILENAME: Final = 255
# The form without the file: boundaries, headers, the other fields.
FORM_BYTES: Final = 64 * 1024
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


@dataclass
class Upload:
    """What was received: the file under its temporary name, synced, and the other fields."""

    path: Path
    filename: str = ""
    size: int = 0
    sha256: str = ""
    fields: dict[str, str] = field(default_factory=dict)


async def receive(
    request: Request,
    path: Path,
    limit: int,
    space: Callable[[], Space],
    *,
    name: str = "file",
    has_filename: bool = True,
) -> Upload:
    """Write the part `name` of the body to `path`, at most `limit` bytes of it.

    Raises the errors of this module's imports; then nothing is left at `path`.
    """
    boundary = _boundary(request.headers.get("content-type", ""))
    announced = request.headers.get("content-length", "0")
    expected = int(announced) if announced.isdigit() else 0
    if expected > limit + FORM_BYTES:
        raise _too_large(limit)
    _require_space(space(), expected)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with upload_locks.create(path) as file:
            form = _Form(boundary, file, limit, Upload(path), space, name)
            form.has_filename = has_filename
            await _pump(request, form)
            await to_thread.run_sync(_sync, file)
        return form.finish()
    except OSError as error:
        remove_if_there(path)
        full = storage_error(error, space())
        if full is None:
            raise
        raise full from error
    except BaseException:  # also after cancelled and disconnected requests
        remove_if_there(path)
        raise


def _require_space(space: Space, more: int) -> None:
    if space.free - more < space.kept:
        raise InsufficientStorageError(_capitalized(space))


def _capitalized(space: Space) -> str:
    text = str(space)
    return f"{text[0].upper()}{text[1:]}."


async def _pump(request: Request, form: "_Form") -> None:
    pending: list[bytes] = []
    size = 0
    try:
        async for piece in request.stream():
            pending.append(piece)
            size += len(piece)
            if size >= _WRITE_BYTES:
                await to_thread.run_sync(form.feed, b"".join(pending))
                pending, size = [], 0
    except ClientDisconnect:
        raise ClientClosedError("The upload was not complete.") from None
    await to_thread.run_sync(form.feed, b"".join(pending))


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _boundary(content_type: str) -> bytes:
    media_type, options = parse_options_header(content_type)
    if media_type != b"multipart/form-data":
        raise UnsupportedMediaTypeError("Send the file as multipart/form-data.")
    if not options.get(b"boundary"):
        raise InvalidMultipartError("The Content-Type has no boundary.")
    return options[b"boundary"]


def _too_large(limit: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"A file may have at most {limit} bytes.")


class _Form:
    """Parses the body piece by piece; the part `file` is written to disk, the others are short."""

    def __init__(
        self,
        boundary: bytes,
        file: BinaryIO,
        limit: int,
        upload: Upload,
        space: Callable[[], Space],
        name: str,
    ) -> None:
        self._name = name
        self.has_filename = True
        self._file = file
        self._space = space
        self._parts = 0
        self._limit = limit
        self._upload = upload
        self._digest = hashlib.sha256()
        self._ended = False
        self._header_name = b""
        self._header_value = b""
        self._headers: dict[bytes, bytes] = {}
        self._part = ""
        self._text = b""
        self._sink: Callable[[bytes], None] = self._keep
        self._files = 0
        callbacks: MultipartCallbacks = {
            "on_part_begin": self._part_begin,
            "on_header_field": self._header_field,
            "on_header_value": self._header_value_part,
            "on_header_end": self._header_end,
            "on_headers_finished": self._headers_finished,
            "on_part_data": lambda data, start, end: self._sink(data[start:end]),
            "on_part_end": self._part_end,
            "on_end": self._end,
        }
        try:
            self._parser = MultipartParser(boundary, callbacks)
        except FormParserError as error:
            raise InvalidMultipartError(str(error)) from None

    def feed(self, data: bytes) -> None:
        _require_space(self._space(), len(data))
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise InvalidMultipartError(cut(str(error))) from None

    def finish(self) -> Upload:
        """Raises InvalidMultipartError if the closing boundary never came."""
        if not self._ended:
            raise InvalidMultipartError("The form is incomplete: its closing boundary is missing.")
        if not self._files:
            raise _missing(self._name)
        self._upload.sha256 = self._digest.hexdigest()
        return self._upload

    def _part_begin(self) -> None:
        self._headers = {}
        self._text = b""
        self._parts += 1
        if self._parts > _MOST_PARTS:
            raise InvalidMultipartError(f"The form has more than {_MOST_PARTS} parts.")

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _header_value_part(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _header_end(self) -> None:
        self._headers[self._header_name.lower()] = self._header_value
        self._header_name = self._header_value = b""

    def _headers_finished(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        self._part = options.get(b"name", b"").decode("utf-8", "replace")
        if self._part != self._name:
            self._sink = self._keep
            return
        self._files += 1
        if self._files > 1:
            raise InvalidMultipartError(f"The form has more than one part `{self._name}`.")
        if self.has_filename:
            self._upload.filename = _clean_filename(options.get(b"filename", b""))
        self._sink = self._write

    def _part_end(self) -> None:
        if self._part != self._name:
            self._upload.fields[cut(self._part)] = self._text.decode("utf-8", "replace")

    def _end(self) -> None:
        self._ended = True

    def _keep(self, data: bytes) -> None:
        self._text += data
        if len(self._text) > _LONGEST_FIELD:
            raise InvalidMultipartError(f"The part {cut(self._part)!r} is too long.")

    def _write(self, data: bytes) -> None:
        self._upload.size += len(data)
        if self._upload.size > self._limit:
            raise _too_large(self._limit)
        self._file.write(data)
        self._digest.update(data)


def _clean_filename(raw: bytes) -> str:
    """The last part of the client's path, without control characters."""
    name = _CONTROL.sub("", raw.decode("utf-8", "replace")).replace("\\", "/").rpartition("/")[2]
    if not name:
        raise _missing("file", "give the part a filename")
    return name[-_LONGEST_FILENAME:]


def _missing(name: str, message: str = "required, but not given") -> InvalidRequestError:
    fault = Fault(path=f"body.{name}", code="missing_field", message=message)
    return InvalidRequestError([fault])


def storage_error(error: OSError, space: Space) -> InsufficientStorageError | None:
    """The error for a full disk; None if `error` is another one."""
    return InsufficientStorageError(_capitalized(space)) if error.errno in _FULL else None


def commit(source: Path, target: Path) -> None:
    """Give a synced file its final name, durably."""
    source.rename(target)
    sync_folder(target.parent)


def remove_if_there(path: Path) -> None:
    with suppress(FileNotFoundError):
        path.unlink()
