"""Links that sign a browser in once: their files are in the home, which only its user can write."""

import hashlib
import secrets
import time
from pathlib import Path
from typing import Final

from service.system import private_file

_SECONDS: Final = 3600
_FOLDER: Final = "login-links"


def make_link(home: Path, key: str) -> str:
    """The token of a link with which a browser begins a session without knowing the key."""
    folder = home / _FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    for old in folder.iterdir():
        if time.time() - old.stat().st_mtime > _SECONDS:
            old.unlink(missing_ok=True)
    token = secrets.token_urlsafe(32)
    private_file.write(_file(home, token), key)
    return token


def use_link(home: Path, token: str) -> str | None:
    """The key behind the token, which works once and for an hour."""
    file = _file(home, token)
    try:
        age, key = time.time() - file.stat().st_mtime, file.read_text("utf-8")
        # If several requests come at once, only one of them can remove it.
        file.unlink()
    except OSError:
        return None
    return key if age < _SECONDS else None


def _file(home: Path, token: str) -> Path:
    # The name reveals no token to whoever sees a listing.
    return home / _FOLDER / hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()
