"""How often something may happen."""


class Bucket:
    """A token bucket with `rate` tokens a second. Its burst is one second's worth, but at least
    `saved`."""

    def __init__(self, saved: float = 1.0) -> None:
        self._saved = saved
        self._tokens = -1.0
        self._at = 0.0

    def take(self, rate: float, now: float) -> float:
        """0 if there was a token, else the seconds until there is one."""
        most = max(self._saved, rate)
        saved = most if self._tokens < 0 else self._tokens + (now - self._at) * rate
        self._tokens, self._at = min(most, saved), now
        if self._tokens >= 1:
            self._tokens -= 1
            return 0.0
        return (1 - self._tokens) / rate
