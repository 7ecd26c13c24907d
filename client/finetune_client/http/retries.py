"""When a request is sent again, and after how long."""

import random
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

import httpx

from finetune_client.errors import APIError

FIRST_WAIT: Final = 0.5
"""Seconds before the second try; each further wait is twice as long, up to MOST_WAIT."""
MOST_WAIT: Final = 8.0
PASSING: Final = (408, 429, 502, 503, 504)
"""Statuses worth another try of a request that may arrive twice."""
_NOT_DONE: Final = (408, 429)
"""Statuses that say that nothing was done, so that every request may be sent again."""
NEVER_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


def after_answer(error: APIError, *, is_repeatable: bool) -> bool:
    """Whether to send a request again that was answered with an error."""
    advice = error.headers.get("x-should-retry")
    if advice == "false":
        return False
    if error.code == "idempotency_in_flight":
        return is_repeatable
    return error.status in (PASSING if is_repeatable else _NOT_DONE)


def seconds(attempt: int, headers: httpx.Headers | None = None) -> float:
    """The wait after the given attempt, which counts from 0: what the service asks for, else
    growing, and a little shorter by chance, so that many clients do not come back at once."""
    asked = _retry_after(headers.get("retry-after", "")) if headers else None
    if asked is not None:
        return asked
    wait = min(FIRST_WAIT * 2.0 ** min(attempt, 32), MOST_WAIT)
    return wait * (1 - 0.25 * random.random())


def _retry_after(text: str) -> float | None:
    """Seconds; the header holds a number or a date."""
    if text.strip().replace(".", "", 1).isdecimal():
        return float(text)
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    # A date without a zone is in UTC, as HTTP's dates are.
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return max(0.0, (at - datetime.now(UTC)).total_seconds())
