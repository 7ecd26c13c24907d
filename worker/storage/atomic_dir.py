"""Checkpoints as directories on disk: written whole or not at all, and verified. No torch here.

A directory appears under its final name only when every byte of it is on disk; `manifest.json`,
written last, holds size and sha256 of every other file.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

MANIFEST: Final = "manifest.json"
_PARTIAL: Final = ".tmp"
_VERSION: Final = 1


@contextmanager
def writing(final_dir: Path) -> Iterator[Path]:
    """Yield an empty folder; when the block ends well it becomes `final_dir`, durably.

    A leftover of an earlier writer and a `final_dir` that exists already are replaced: what is
    registered is never written again. When the block or the disk fails (OSError with ENOSPC when
    it is full) nothing is left behind and no other directory has changed.
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
        shutil.rmtree(partial, ignore_errors=True)  # frees the disk; the error matters more
        raise
    _fsync(final_dir.parent)


def verify(folder: Path, *, only: str | None = None) -> bool:
    """Whether the manifest and all that it lists, or `only` one file, are there, unchanged.

    Reads every byte.
    """
    return why_unusable(folder, only=only) is None


def why_unusable(folder: Path, *, only: str | None = None) -> str | None:
    """Why `verify` fails, in words that follow "cannot be read:"; None if it does not."""
    damaged = "its manifest does not match its files"
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        if (version := manifest["version"]) != _VERSION:
            return (
                f"its manifest has version {version}, and this release reads only version "
                f"{_VERSION}: use the release that wrote it, or a newer one"
            )
        intact = all(
            (folder / name).stat().st_size == entry["size"]
            and file_sha256(folder / name) == entry["sha256"]
            for name, entry in manifest["files"].items()
            if only in (None, name)
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return damaged
    return None if intact else damaged


def remove(folder: Path) -> None:
    """Delete a checkpoint. The manifest goes first, so that no half of one ever verifies."""
    with suppress(FileNotFoundError):
        (folder / MANIFEST).unlink()
        _fsync(folder)
    with suppress(FileNotFoundError):
        shutil.rmtree(folder)


def manifest_sha256(folder: Path) -> str:
    """Names the content of the whole checkpoint."""
    return file_sha256(folder / MANIFEST)


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
        _fsync(path)  # before the manifest that vouches for them
    (folder / MANIFEST).write_text(text)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
