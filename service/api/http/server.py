"""How uvicorn serves the API: with our limits on connections."""

from functools import partial
from typing import Any, Final

from service.api.http.connection import Connection
from service.api.http.connection_limits import Gate, Limits, affordable
from service.settings import Settings

_DRAIN_SECONDS: Final = 5
"""Time for requests in flight to end when the API stops."""
_KEEP_ALIVE_SECONDS: Final = 5
_LARGEST_BACKLOG: Final = 2048


def options(settings: Settings, limits: Limits | None = None) -> dict[str, Any]:
    """For `uvicorn.run` or `uvicorn.Config`."""
    limits = limits or Limits(most_connections=affordable(settings.max_connections))
    return {
        "http": partial(Connection, gate=Gate(limits)),
        "ws": "none",
        # All that waits there is opened at once, before any of it can be closed.
        "backlog": min(_LARGEST_BACKLOG, limits.most_connections),
        "timeout_keep_alive": _KEEP_ALIVE_SECONDS,
        "timeout_graceful_shutdown": _DRAIN_SECONDS,
        # Otherwise a client could choose the address that is logged for it.
        "proxy_headers": bool(settings.trusted_proxies),
        "forwarded_allow_ips": settings.trusted_proxies,
        "log_config": None,
        "access_log": False,
    }
