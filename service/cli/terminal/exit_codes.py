"""Exit statuses of every command; scripts may rely on them."""

from typing import Final

OK: Final = 0
FAILED: Final = 1
"""The job ended failed or cancelled; a prediction or a preview was not made; or a part of the stack
could not be started."""
USAGE: Final = 2
"""Wrong options, a wrong spec, or a request that the service refuses (4xx)."""
UNREACHABLE: Final = 3
"""The service cannot be reached, or answers with 5xx."""
INTERRUPTED: Final = 130
"""Ctrl-C."""


class UsageError(Exception):
    """Something that the caller of the command must change; the message says what."""
