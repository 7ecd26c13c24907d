"""Files of a stage that the user may download."""

from collections.abc import Callable, Mapping
from pathlib import Path

from service.contract.stage.events import ArtifactWritten, StageEvent
from worker.storage import atomic_dir


def announce(
    files: Mapping[str, Path], workspace: Path, send: Callable[[StageEvent], None]
) -> None:
    """`files`: the name that the user sees → the file, within `workspace`."""
    for name, path in files.items():
        send(
            ArtifactWritten(
                name=name,
                path=str(path.relative_to(workspace)),
                bytes=path.stat().st_size,
                sha256=atomic_dir.file_sha256(path),
            )
        )
