"""Folders that downloads write: they appear whole, and never hold a mix of two downloads."""

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from finetune_client.errors import UnsafeNameError
from finetune_client.http import downloads

from service.cli.terminal.exit_codes import UsageError
from service.system import escaping, locked_folder

MANIFEST: Final = ".finetune-download.json"
"""Lists what the download wrote: `--force` replaces that and nothing else."""
_SHOWN: Final = 3


@contextmanager
def writing(target: Path, job_id: str, *, force: bool) -> Iterator[Path]:
    """A temporary folder to write to; `target` becomes it at the end, and stays as it was after an
    exception.

    UsageError if `target` has files already: with `force`, other files than an earlier download
    wrote.
    """
    target = Path(os.path.realpath(target))
    partials = f".finetune-partial-{hashlib.sha256(os.fsencode(target.name)).hexdigest()[:12]}"
    with writable(target):
        require_free(target, force=force)
        is_new = not target.exists()
        place = target.parent if is_new else target
        place.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(place, partials)
        with _locked(place / f"{partials}-{uuid.uuid4().hex[:8]}") as folder:
            yield folder
            _write_manifest(folder, job_id, _files(folder))
            if is_new:
                folder.rename(target)
            else:
                require_free(target, force=force)  # again, to lose nothing that came meanwhile
                _replace_entries(target, folder, job_id)


@contextmanager
def writable(target: Path) -> Iterator[None]:
    """A disk that is full, a folder of another user and so on as a UsageError."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot write to {target}: {error.strerror or error}") from error


def require_free(target: Path, *, force: bool) -> None:
    """UsageError if `target` cannot be written as a whole."""
    if target.exists() and not target.is_dir():
        raise UsageError(f"{target} is a file: give another folder with --to")
    found = [name for name in _files(target) if not _is_ours(name)] if target.exists() else []
    if not found:
        return
    if not force:
        raise UsageError(
            f"{target} is not empty: give another folder with --to, or replace an earlier download "
            "with --force"
        )
    if others := sorted(set(found).difference(read_manifest(target).get("files", ()))):
        shown = ", ".join(others[:_SHOWN]) + (", …" if len(others) > _SHOWN else "")
        raise UsageError(
            f"{target} has files that no download wrote ({shown}), and --force replaces only "
            "downloads: move them away, or give another folder with --to"
        )


def read_manifest(folder: Path) -> dict[str, Any]:
    """`job` and `files` of the download in the folder; empty without one."""
    try:
        content = json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) and isinstance(content.get("files"), list) else {}


def _write_manifest(folder: Path, job_id: str, files: Iterable[str]) -> None:
    content = {"job": job_id, "files": sorted(set(files))}
    partial = folder / f"{MANIFEST}.partial"
    partial.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    partial.replace(folder / MANIFEST)


def _files(folder: Path) -> list[str]:
    """Relative paths of all files, links and empty folders, without the download's own."""
    found = []
    for parent, folders, names in os.walk(folder):
        inside = Path(parent).relative_to(folder)
        links = [name for name in folders if (Path(parent) / name).is_symlink()]
        found += [(inside / name).as_posix() for name in [*names, *links]]
        if not folders and not names and inside.parts:
            found.append(inside.as_posix())
    return [name for name in found if not _is_ours(name)]


def _is_ours(name: str) -> bool:
    return name.startswith((".finetune-partial-", MANIFEST))


def _replace_entries(target: Path, folder: Path, job_id: str) -> None:
    """Exchange what is in `target`, which may be a mount point or the shell's current folder, for
    what is in `folder`, which lies in it.

    The manifest names the files of both meanwhile, so that `--force` can begin again after a crash.
    """
    earlier: list[str] = read_manifest(target).get("files", [])
    _write_manifest(target, job_id, [*earlier, *_files(folder)])
    removed = folder.with_name(f"{folder.name}-removed")
    removed.mkdir()
    for entry in [each for each in target.iterdir() if not _is_ours(each.name)]:
        entry.rename(removed / entry.name)
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name == MANIFEST):  # it last
        entry.rename(target / entry.name)
    shutil.rmtree(removed)


@contextmanager
def _locked(folder: Path) -> Iterator[Path]:
    """A new folder that is removed at the end; its lock shows that its process is alive."""
    folder.mkdir()
    with locked_folder.if_free(folder):
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _remove_leftovers(place: Path, partials: str) -> None:
    """Of downloads to the same target whose process was killed."""
    for folder in place.glob(f"{partials}-*"):
        with locked_folder.if_free(folder) as is_free:
            if is_free:
                shutil.rmtree(folder, ignore_errors=True)  # ignores a link, which stays


def paths(names: Sequence[str], to: Path) -> Mapping[str, Path]:
    """Where each of the service's names lies under `to`.

    UsageError for a name outside of it, for one of ours, and for two names that a file system may
    take for one. The service may be malicious.
    """
    for name in names:
        if any(part != escaping.line(part) or _is_ours(part) for part in Path(name).parts):
            raise UsageError(f"the service names {name!r}, which is not a file's name")
    try:
        return downloads.paths(names, to)
    except UnsafeNameError as error:
        raise UsageError(str(error)) from error
