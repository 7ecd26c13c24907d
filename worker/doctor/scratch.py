"""The folder where checks write: one per run, removed at its end or by the next run."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from service.system import locked_folder

_PREFIX: Final = "run-"


@contextmanager
def folder(home: Path) -> Iterator[Path]:
    """An empty folder under `home`, the disk that jobs use; if not writable, a temporary folder.

    Removes the folders of killed runs, whose locks are free.
    """
    root = home / "doctor"
    try:
        root.mkdir(parents=True, exist_ok=True)
        own = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
    except OSError:
        own = Path(tempfile.mkdtemp(prefix="finetune-doctor-"))
    with ExitStack() as ending:
        ending.callback(shutil.rmtree, own, ignore_errors=True)
        with suppress(OSError):  # a file system without locks
            ending.enter_context(locked_folder.if_free(own))
            for left in root.glob(f"{_PREFIX}*"):
                with locked_folder.if_free(left) as is_free:
                    # Another run may have made an empty one just now, and not locked it yet.
                    if is_free and any(left.iterdir()):
                        shutil.rmtree(left, ignore_errors=True)
        yield own
