"""The files that a checkpoint's manifest lists, and all of them as one tar archive."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from service.api.jobs.archive import Archive, Member, lacks_descriptors
from service.errors import CheckpointGoneError
from service.system.safe_files import open_inside

MANIFEST: Final = "manifest.json"
_LARGEST_MANIFEST: Final = 4 * 1024**2


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
        with open_inside(folder, MANIFEST) as file:
            content = file.read(_LARGEST_MANIFEST)
    except OSError as error:
        if lacks_descriptors(error):
            raise
        raise _removed(folder) from error
    digest = hashlib.sha256(content).hexdigest()
    if digest != manifest_sha256:
        raise _removed(folder)
    try:
        listed = json.loads(content)["files"].items()
        files = [Entry(name, int(each["size"]), str(each["sha256"])) for name, each in listed]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _removed(folder) from error
    files.sort(key=lambda file: file.name)
    return [*files, Entry(MANIFEST, len(content), digest)]


def _removed(folder: Path) -> CheckpointGoneError:
    return CheckpointGoneError(
        f"The files of the checkpoint of step {folder.name} are no longer on this server."
    )


def archive(folder: Path, files: Sequence[Entry]) -> Archive:
    """Raises CheckpointGoneError if a file differs from the manifest."""
    members = [Member(file.name, file.name, file.bytes) for file in files]
    try:
        modified = folder.stat().st_mtime
        return Archive(folder, f"checkpoint-{folder.name}", members, modified)
    except OSError as error:
        if lacks_descriptors(error):
            raise
        raise _removed(folder) from error
