"""Which service to talk to: the environment, then the stack that runs from FINETUNE_HOME."""

import os
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ValidationError

DEFAULT_URL: Final = "http://127.0.0.1:8000"
KEY_PREFIX: Final = "Authorization: Bearer "


class StackAddress(BaseModel):
    """What `up.json` of a home holds; no secrets."""

    pid: int
    url: str
    mlflow_url: str | None
    home: Path


def home() -> Path:
    """FINETUNE_HOME, else `.finetune` in the user's home."""
    return Path(os.environ.get("FINETUNE_HOME") or "~/.finetune").expanduser()


def address_file(home: Path) -> Path:
    return home / "up.json"


def key_file(home: Path) -> Path:
    """Holds the key of `finetune up` as an HTTP header."""
    return home / "authorization"


def read_address(home: Path) -> StackAddress | None:
    """Where the stack of this home listens; None when none runs."""
    try:
        address = StackAddress.model_validate_json(address_file(home).read_bytes())
    except (OSError, ValidationError):
        return None
    if address.home != home.resolve():
        return None  # this home is a copy of the one that runs there
    try:
        os.kill(address.pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:  # it runs as another user
        pass
    return address


def read_key(home: Path) -> str | None:
    """The key in the home's file; None if there is none that can be read."""
    try:
        text = key_file(home).read_text("utf-8")
    except (OSError, ValueError):
        return None
    key = text.removeprefix(KEY_PREFIX).strip()
    return key if key and text.startswith(KEY_PREFIX) else None


def find_url(given: str | None, home: Path) -> str:
    """The given URL, else where the stack of this home listens, else the default."""
    if given:
        return given.rstrip("/")
    address = read_address(home)
    return address.url if address else DEFAULT_URL


def find_key(home: Path, url: str) -> str | None:
    """The key for `url`: only while the stack of this home runs and is what listens there."""
    address = read_address(home)
    return read_key(home) if address is not None and address.url == url else None
