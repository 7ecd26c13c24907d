"""How numbers, sizes and times look to a person."""

from datetime import UTC, datetime
from typing import Any, Final

_SIZES: Final = (("TiB", 1024**4), ("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024))
_MANY: Final = 1e9
"""From here on numbers are shown as powers of ten."""
_LONG: Final = (("d", 86400), ("h", 3600), ("min", 60))


def number(value: Any, digits: int = 3) -> str:
    """1.23456 → `1.23`, 12345.6 → `12,346`; other values as they are: a loss may be `nan`."""
    if not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or (abs(value) < _MANY and round(abs(value)) >= 10**digits):
        return f"{value:,.0f}"
    return f"{value:,.{digits}g}"


def size(count: Any) -> str:
    """1288490188 → `1.2 GiB`."""
    if not isinstance(count, int | float):
        return str(count)
    for unit, factor in _SIZES:
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count:.0f} bytes"


def clock(seconds: Any) -> str:
    """75 → `1:15`."""
    if not isinstance(seconds, int | float):
        return str(seconds)
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def duration(seconds: float) -> str:
    """75 → `1 min 15 s`; the two largest units."""
    rest = max(0, round(seconds))
    words = []
    for unit, length in _LONG:
        count, rest = divmod(rest, length)
        if count:
            words.append(f"{count} {unit}")
    if rest or not words:
        words.append(f"{rest} s")
    return " ".join(words[:2])


def brief(seconds: float) -> str:
    """75 → `1m`; the largest unit, for a column of a table."""
    rest = max(0, round(seconds))
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if rest >= length:
            return f"{rest // length}{unit}"
    return f"{rest}s"


def moment(text: str) -> datetime:
    """A time of the API, which are all in UTC."""
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def local(text: str) -> str:
    """`2026-11-23 12:03:11` in the local time zone."""
    return f"{moment(text).astimezone():%Y-%m-%d %H:%M:%S}"


def seconds_until(text: str, now: datetime | None = None) -> float:
    return (moment(text) - (now or datetime.now(UTC))).total_seconds()
