"""A database that cannot be used: why, and what to do, in words for the operator."""

import re
from typing import Final

from sqlalchemy import make_url
from sqlalchemy.exc import DatabaseError, DBAPIError, OperationalError

from service.store.database import shown_url

_REASONS: Final = (
    # A pattern of the driver's words → what to do.
    (r"file is not a database", "the file holds something else: move it away, or name another"),
    (r"malformed", "the file is damaged: restore it from a backup"),
    (
        r"unable to open database file",
        "its path must be a file in a folder that this user may read and write",
    ),
    (r"readonly database", "this user may not write the file or its folder"),
    (r"database is locked", "another process keeps it locked: end it, or try again"),
    (r"database or disk is full|disk I/O error", "its disk is full or faulty: free space on it"),
    (
        r"could not translate|not known|resolve host|name resolution",
        "its host is not known: correct the name",
    ),
    (
        r"authentication failed|no password|role .* does not exist",
        "correct its user and password",
    ),
    (r"database .* does not exist", "create it with `createdb`, or correct its name"),
    (r"refused|timed? ?out|No route|unreachable", "start its server, or correct host and port"),
)
_LONGEST_REASON: Final = 200


def is_unusable(error: BaseException) -> bool:
    """Whether the database cannot be read or written at all, for example because its file is not a
    database; not for a statement that it refuses."""
    return isinstance(error, OperationalError) or type(error) is DatabaseError


def described(url: str, error: DBAPIError) -> str:
    """That the database cannot be used, why, and what to do."""
    lines = str(error.orig).strip().splitlines()
    reason = lines[0][:_LONGEST_REASON] if lines else type(error.orig).__name__
    advice = (what for words, what in _REASONS if re.search(words, str(error.orig)))
    what = next(advice, "correct FINETUNE_DATABASE_URL, or start its server")
    return f"the database {shown_url(make_url(url))} cannot be used ({reason}): {what}"
