"""Lengths of time that a user types."""

import re
from typing import Final

from service.cli.terminal.exit_codes import UsageError

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds(text: str) -> int:
    """`24h`, `30d`, `90m` or a number of seconds."""
    match = re.fullmatch(r"(\d{1,9})([smhd]?)", text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not a length of time such as 24h, 30d or 90m")
    return int(match[1]) * _UNITS[match[2] or "s"]
