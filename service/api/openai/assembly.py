"""Makes one file of the parts of an upload, on a disk that has room for one more part.

Each part is removed as soon as it is in the file, so a killed completion is continued, not begun
again: SQL has the order of the parts by then, and the parts that were removed are in the file.
"""

import hashlib
import os
import shutil
from pathlib import Path
from typing import Final

from service.api.files import upload
from service.errors import ChecksumMismatchError, UploadNotPendingError
from service.jobs import removal
from service.jobs.disk_space import space
from service.settings import Settings
from service.store.database import Database
from service.store.files import files, uploads
from service.store.files.uploads import Part
from service.store.scope import Scope
from service.store.tables.files import FileRow
from service.store.tables.uploads import UploadRow
from service.system.durable_files import sync_folder

_READ_BYTES: Final = 1024**2
_WHOLE: Final = "whole"


def complete(
    database: Database,
    settings: Settings,
    scope: Scope,
    upload_id: str,
    part_ids: list[str],
    md5: str | None,
) -> tuple[UploadRow, FileRow | None]:
    """The completed upload and its file; the caller holds the lock of the upload's folder. Raises
    the errors of `uploads.begin_completion`, ChecksumMismatchError, InsufficientStorageError."""
    with database.write(audited=False) as session:
        row, parts = uploads.begin_completion(session, scope, upload_id, part_ids)
        if not parts:
            return row, uploads.file_of(session, row)
    folder = settings.uploads_dir / upload_id
    try:
        if row.file_id is None:
            sha256 = _checked(folder, parts, md5)
            with database.write(audited=False) as session:
                row = uploads.fix_parts(session, scope, upload_id, part_ids, sha256)
        target = settings.files_dir / str(row.file_id)
        if not target.exists():
            _concatenate(folder, parts)
            with database.write(audited=False) as session:
                files.announce(session, target.name)
            settings.files_dir.mkdir(parents=True, exist_ok=True)
            upload.commit(folder / _WHOLE, target)
    except FileNotFoundError as error:
        raise UploadNotPendingError("Its parts were removed: begin another.") from error
    except OSError as error:
        full = upload.storage_error(error, space(settings))
        if full is None:
            raise
        raise full from error
    with database.write() as session:
        done = uploads.finish(session, scope, upload_id)
    removal.remove_paths(database, settings.home, [uploads.folder(upload_id)])
    return done


def _checked(folder: Path, parts: list[Part], md5: str | None) -> str:
    """The SHA-256 of the parts one after the other, in hex. Raises ChecksumMismatchError."""
    whole, check = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
    for part in parts:
        with (folder / part.id).open("rb") as file:
            while data := file.read(_READ_BYTES):
                whole.update(data)
                if md5 is not None:
                    check.update(data)
    if md5 is not None and check.hexdigest() != md5.lower():
        raise ChecksumMismatchError(f"`md5` is {md5}; the parts have {check.hexdigest()}.")
    return whole.hexdigest()


def _concatenate(folder: Path, parts: list[Part]) -> None:
    """Append the parts to the file `whole` and remove each once it is there for good."""
    with (folder / _WHOLE).open("ab+") as file:
        offset = 0
        for part in parts:
            source = folder / part.id
            if source.exists():
                # What a killed process has copied of this part may be incomplete.
                file.truncate(offset)
                with source.open("rb") as content:
                    shutil.copyfileobj(content, file, _READ_BYTES)
                file.flush()
                os.fsync(file.fileno())
                source.unlink()
                sync_folder(folder)
            offset += part.bytes
        if os.fstat(file.fileno()).st_size != offset:
            raise FileNotFoundError(f"parts of {folder.name} are missing")
