"""What a request to MLflow's pages shows: an API key, or the cookie of a browser's session.

The cookie opens nothing else than /mlflow/: a page that makes a browser send it cannot use the API.
"""

import base64
import binascii
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Final, NamedTuple

COOKIE: Final = "finetune_session"
_MOST_CHARACTERS: Final = 4096


class Credential(NamedTuple):
    text: str
    is_session: bool = False
    """Whether it is the token of a session, else an API key."""


def shown(headers: Mapping[str, str]) -> Credential | None:
    """An API key as a bearer or as the password of HTTP Basic, which clients of MLflow can send, or
    a session."""
    scheme, _, value = headers.get("authorization", "").partition(" ")
    match scheme.lower():
        case "bearer":
            key = value.strip()
        case "basic":
            key = _password(value)
        case _:
            token = session_token(headers)
            return Credential(token, is_session=True) if token else None
    return Credential(key) if key else None


def session_token(headers: Mapping[str, str]) -> str | None:
    try:
        cookie = SimpleCookie(headers.get("cookie", "")[:_MOST_CHARACTERS]).get(COOKIE)
    except CookieError:
        return None
    return cookie.value if cookie is not None else None


def _password(credentials: str) -> str:
    try:
        decoded = base64.b64decode(credentials, validate=True).decode()
    except (binascii.Error, ValueError):
        return ""
    return decoded.partition(":")[2]
