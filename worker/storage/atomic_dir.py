"""Directories that are written atomically and can be verified, such as checkpoints. No torch here.

A directory appears under its final name only when every byte of it is on disk; `manifest.json`,
written last, holds size and sha256 of every other file.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from service.system.safe_files import open_inside

MANIFEST: Final = "manifest.json"
_PARTIAL: Final = ".tmp"
_VERSION: Final = 1
_LARGEST_MANIFEST: Final = 64 * 1024**2


@contextmanager
def writing(final_dir: Path) -> Iterator[Path]:
    """Yield an empty folder, which durably becomes `final_dir` if the block succeeds.

    Leftovers of an earlier writer and an existing `final_dir` are replaced: a registered directory
    is never written again. If the block or the disk fails (OSError with ENOSPC if it is full),
    nothing is left behind and no other directory changes.
    """
    partial = final_dir.with_name(final_dir.name + _PARTIAL)
    final_dir.parent.mkdir(parents=True, exist_ok=True)
    remove(partial)
    partial.mkdir()
    try:
        yield partial
        _write_manifest(partial)
        sync_tree(partial)
        remove(final_dir)
        partial.rename(final_dir)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)  # free the disk; the error matters more
        raise
    _fsync(final_dir.parent)


def verify(folder: Path, *, only: str | None = None) -> bool:
    """Whether the manifest exists and every file it lists (or `only` this one) is unchanged.

    Reads every byte.
    """
    return why_unusable(folder, only=only) is None


def why_unusable(folder: Path, *, only: str | None = None) -> str | None:
    """Why `verify` fails, in words that follow "cannot be read:"; None if it does not."""
    damaged = "its manifest does not match its files"
    try:
        with open_inside(folder, MANIFEST) as stream:
            manifest = json.loads(stream.read(_LARGEST_MANIFEST))
        if (version := manifest["version"]) != _VERSION:
            return (
                f"its manifest has version {version}, and this release reads only version "
                f"{_VERSION}: use the release that wrote it, or a newer one"
            )
        intact = all(
            _is_as_listed(folder, name, entry)
            for name, entry in manifest["files"].items()
            if only in (None, name)
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return damaged
    return None if intact else damaged


def remove(folder: Path) -> None:
    """Delete a checkpoint: the manifest first, so that a partial one is never valid."""
    with suppress(FileNotFoundError):
        (folder / MANIFEST).unlink()
        _fsync(folder)
    with suppress(FileNotFoundError):
        shutil.rmtree(folder)


def manifest_sha256(folder: Path) -> str:
    """Identifies the content of the whole directory."""
    with open_inside(folder, MANIFEST) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _is_as_listed(folder: Path, name: str, entry: Mapping[str, Any]) -> bool:
    """Without following links: a stage may have written the manifest, too."""
    with open_inside(folder, name) as stream:
        if os.fstat(stream.fileno()).st_size != entry["size"]:
            return False
        return hashlib.file_digest(stream, "sha256").hexdigest() == str(entry["sha256"])


def total_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in _files(folder))


def file_sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sync_tree(folder: Path) -> None:
    """Force every file and directory of `folder` to disk."""
    for path in folder.rglob("*"):
        _fsync(path)
    _fsync(folder)


def _write_manifest(folder: Path) -> None:
    files = {
        str(path.relative_to(folder)): {"size": path.stat().st_size, "sha256": file_sha256(path)}
        for path in _files(folder)
    }
    text = json.dumps({"version": _VERSION, "files": files}, indent=1, sort_keys=True)
    for path in _files(folder):
        _fsync(path)  # before the manifest that lists them
    (folder / MANIFEST).write_text(text)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
