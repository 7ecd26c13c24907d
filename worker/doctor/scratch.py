"""The folder where checks write: one per run, removed at its end or by the next run."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from service import locked_folder


@contextmanager
def folder(home: Path) -> Iterator[Path]:
    """An empty folder under `home`, the disk that jobs use; if not writable, a temporary folder.

    Removes the folders of killed runs: nobody holds their locks.
    """
    root = home / "doctor"
    try:
        root.mkdir(parents=True, exist_ok=True)
        own = Path(tempfile.mkdtemp(prefix="run-", dir=root))
    except OSError:
        own = Path(tempfile.mkdtemp(prefix="finetune-doctor-"))
    with ExitStack() as ending:
        ending.callback(shutil.rmtree, own, ignore_errors=True)
        with suppress(OSError):  # a file system without locks
            ending.enter_context(locked_folder.if_free(own))
            for left in root.iterdir():
                with locked_folder.if_free(left) as is_free:
                    if is_free:
                        shutil.rmtree(left, ignore_errors=True)
        yield own
