"""A folder of a stage's own for temporary files; removed when the stage has ended."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import structlog

log = structlog.get_logger(__name__)

_PREFIX: Final = "finetune-stage-"
_NAME: Final = re.compile(rf"{_PREFIX}(\d+)-")


@contextmanager
def private_folder() -> Iterator[Path]:
    """Beside the worker's temporary files, because paths of sockets in it must stay short."""
    _remove_orphans()
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
    try:
        yield folder
    finally:
        remove(folder)


def _remove_orphans() -> None:
    """Remove what workers of this user that were killed have left."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        found = _NAME.match(folder.name)
        if found is None or Path(f"/proc/{found[1]}").exists():
            continue
        if folder.is_dir() and not folder.is_symlink() and folder.stat().st_uid == os.getuid():
            remove(folder)


def remove(folder: Path) -> None:
    """Remove the folder with all its content; a missing folder is not an error."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except RecursionError:
        log.info("folder.nested_deeply", folder=str(folder))
    if folder.exists():  # nested deeply, or the stage has made folders without access rights
        for command in (["chmod", "-R", "u+rwx"], ["rm", "-rf"]):
            subprocess.run([*command, "--", str(folder)], stderr=subprocess.DEVNULL, check=False)
