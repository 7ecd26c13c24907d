"""Browser sessions: a cookie that holds the visitor's API key, encrypted, for MLflow's pages alone.

Because the key itself is in it, a session ends when its key is revoked or expires. The cookie opens
nothing else than /mlflow/: a page that makes a browser send it cannot use the API.
"""

import base64
import binascii
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Final

from cryptography.fernet import Fernet, InvalidToken

from service import private_file

COOKIE: Final = "finetune_session"
SECONDS: Final = 12 * 3600
_MOST_CHARACTERS: Final = 4096


class Sessions:
    def __init__(self, home: Path) -> None:
        self.home = home
        self._fernet: Fernet | None = None

    def cookie_for(self, key: str) -> str:
        return self._cipher().encrypt(key.encode()).decode()

    def key_in(self, headers: Mapping[str, str]) -> str | None:
        """The API key that a request to /mlflow/ carries: as a bearer, as the password of HTTP
        Basic, which clients of MLflow can send, or in its session."""
        scheme, _, value = headers.get("authorization", "").partition(" ")
        match scheme.lower():
            case "bearer":
                return value.strip() or None
            case "basic":
                return _password(value)
        return self._key_of_session(headers.get("cookie", ""))

    def _key_of_session(self, header: str) -> str | None:
        try:
            cookie = SimpleCookie(header[:_MOST_CHARACTERS]).get(COOKIE)
            if cookie is None:
                return None
            return self._cipher().decrypt(cookie.value.encode(), ttl=SECONDS).decode()
        except (CookieError, InvalidToken, ValueError):
            return None

    def _cipher(self) -> Fernet:
        """Shared by all processes of the API, and kept over restarts."""
        if self._fernet is None:
            made = private_file.read_or_make(
                self.home / "session-key", lambda: Fernet.generate_key().decode()
            )
            self._fernet = Fernet(made)
        return self._fernet


def _password(credentials: str) -> str | None:
    try:
        decoded = base64.b64decode(credentials, validate=True).decode()
    except (binascii.Error, ValueError):
        return None
    return decoded.partition(":")[2] or None
