"""Sends the files that a checkpoint's manifest lists, one by one or as one tar archive."""

import hashlib
import json
import os
import stat
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from service.errors import CheckpointGoneError

MANIFEST: Final = "manifest.json"
_LARGEST_MANIFEST: Final = 4 * 1024**2
_BLOCK: Final = 1024**2
_RECORD: Final = tarfile.BLOCKSIZE


@dataclass(frozen=True)
class Entry:
    name: str
    bytes: int
    sha256: str


def entries(folder: Path, manifest_sha256: str) -> list[Entry]:
    """What the manifest lists, by name, and the manifest itself at the end.

    CheckpointGoneError when it is not on this server as it was registered.
    """
    try:
        with _opened(folder, MANIFEST) as file:
            content = file.read(_LARGEST_MANIFEST)
    except OSError as error:
        raise _gone(folder) from error
    digest = hashlib.sha256(content).hexdigest()
    if digest != manifest_sha256:
        raise _gone(folder)
    try:
        listed = json.loads(content)["files"].items()
        files = [Entry(name, int(each["size"]), str(each["sha256"])) for name, each in listed]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _gone(folder) from error
    files.sort(key=lambda file: file.name)
    return [*files, Entry(MANIFEST, len(content), digest)]


def _gone(folder: Path) -> CheckpointGoneError:
    return CheckpointGoneError(
        f"The files of the checkpoint of step {folder.name} are no longer on this server."
    )


def _opened(folder: Path, name: str) -> BinaryIO:
    """A regular file in the folder. OSError for a link or a name that leads out of it, which a
    stage may have left there."""
    if not is_inside(folder, name):
        raise OSError(f"{name} is not in the folder")
    descriptor = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    file = os.fdopen(descriptor, "rb")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise OSError(f"{name} is not a regular file")
    return file


def is_inside(folder: Path, name: str) -> bool:
    """Whether the name is a file in the folder itself, without links and `..`."""
    return (folder / name).resolve() == folder.resolve() / name


class Archive:
    """A tar archive built while it is sent. All files are opened first, so that a checkpoint
    that is removed meanwhile is still sent in full."""

    def __init__(self, folder: Path, files: list[Entry], modified: float) -> None:
        """Raises CheckpointGoneError if a file differs from the manifest."""
        self._files = files
        self._modified = int(modified)
        self._top = f"checkpoint-{folder.name}"
        self._open = ExitStack()
        try:
            self._streams = [self._open.enter_context(_opened(folder, file.name)) for file in files]
            sizes = [os.fstat(stream.fileno()).st_size for stream in self._streams]
            if sizes != [file.bytes for file in files]:
                raise _gone(folder)
        except OSError as error:
            self._open.close()
            raise _gone(folder) from error
        except BaseException:
            self._open.close()
            raise

    @property
    def size(self) -> int:
        parts = (len(self._header(file)) + _padded(file.bytes) for file in self._files)
        return sum(parts) + 2 * _RECORD

    def content(self) -> Iterator[bytes]:
        """At most a mebibyte at a time."""
        with self._open:
            for file, stream in zip(self._files, self._streams, strict=True):
                yield self._header(file)
                left = file.bytes
                while left:
                    part = stream.read(min(left, _BLOCK))
                    if not part:  # the connection breaks, so that the client notices
                        raise OSError(f"{file.name} has become shorter")
                    left -= len(part)
                    yield part
                yield bytes(_padded(file.bytes) - file.bytes)
            yield bytes(2 * _RECORD)

    def _header(self, file: Entry) -> bytes:
        info = tarfile.TarInfo(f"{self._top}/{file.name}")
        info.size, info.mtime, info.mode = file.bytes, self._modified, 0o644
        return info.tobuf(tarfile.GNU_FORMAT)


def _padded(size: int) -> int:
    return -(-size // _RECORD) * _RECORD
