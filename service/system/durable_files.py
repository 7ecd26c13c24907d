"""Makes changes of file names survive a power cut."""

import os
from pathlib import Path


def sync_folder(folder: Path) -> None:
    """After a file in it was made, renamed or linked; the file's content is synced before."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
