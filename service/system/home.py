"""The home folder, which only its owner may read."""

import os
import stat
from pathlib import Path


def make_private(home: Path) -> None:
    """Create the home, and let only its owner read it and what this process creates from now on.

    A home that is readable is closed. One that belongs to another user, and a folder that cannot be
    a home alone, such as /tmp, stay as they are.
    """
    os.umask(0o077)
    home.mkdir(parents=True, exist_ok=True)
    if _is_ours_alone(home):
        home.chmod(0o700)
        for entry in os.scandir(home):
            found = entry.stat(follow_symlinks=False)
            if found.st_uid == os.getuid() and not entry.is_symlink() and found.st_mode & 0o077:
                os.chmod(entry.path, stat.S_IMODE(found.st_mode) & 0o700)  # noqa: PTH101


def _is_ours_alone(home: Path) -> bool:
    found = home.stat()
    is_shared = found.st_mode & stat.S_ISVTX or home in (Path("/"), Path.home())
    return found.st_uid == os.getuid() and not is_shared
