"""Hides secrets in text: keys, tokens, passwords and the credentials in URLs."""

import re
from typing import Final

MASK: Final = "***"
_TOKEN: Final = r"(?<![A-Za-z0-9])(?:hf_|ft[-_]|sk-|ghp_|glpat-|AKIA|eyJ)[A-Za-z0-9_\-]{6,}"
_SECRET: Final = re.compile(
    # The error of HTTP libraries for a key with a blank or a line end in it, which shows the key.
    r"(?<=header value )b?(?P<quote>['\"]).*?(?P=quote)"
    # A password may hold a slash; without one there is no password before the @.
    r"|(?<=://)(?:[^/\s@:]*:[^\s@]*|[^/\s@]+)@"
    # `<key>` in a sentence says where a key goes.
    r"|(?i:(?<=bearer )|(?<=token=)|(?<=password=)|(?<=api_key=))(?!<\w+>`)[^\s&'\"]+"
    rf"|{_TOKEN}"
)
# Each match holds one of these. To look for them costs a hundredth of the expression, and every
# value of every log record is masked.
_HINTS: Final = (
    *("header value", "://", "bearer ", "token=", "password=", "api_key="),
    *("hf_", "ft-", "ft_", "sk-", "ghp_", "glpat-", "akia", "eyj"),
)


def mask(text: str) -> str:
    """The text with `***` in place of what looks like a secret."""
    if not _may_hold_secret(text):
        return text
    return _SECRET.sub(lambda found: f"{MASK}@" if found[0].endswith("@") else MASK, text)


def holds_secret(text: str) -> bool:
    return _may_hold_secret(text) and _SECRET.search(text) is not None


def _may_hold_secret(text: str) -> bool:
    lowered = text.lower()
    return any(hint in lowered for hint in _HINTS)
