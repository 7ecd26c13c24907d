"""A network error in one sentence: which host, for which model or data set, and why.

Matches classes by name, as worker/failures.py, so that it imports no library.
"""

import errno
import re
from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import urlsplit

_REASONS: Final = (
    (r"CERTIFICATE_VERIFY_FAILED|certificate verify failed", "its certificate is not trusted"),
    (
        r"gaierror|Name or service not known|name resolution|getaddrinfo|nodename nor servname|"
        r"No address associated",
        "name not found",
    ),
    (r"Connection ?refused", "connection refused"),
    (r"OfflineModeIsEnabled", "HF_HUB_OFFLINE is set"),
    (r"ProxyError|Tunnel connection failed", "the proxy refused"),
    (r"Time(d)? ?out", "timed out"),
    (r"Connection ?reset|disconnected|closed connection|peer closed", "connection closed"),
    (r"unreachable", "no route to it"),
)
_UNREACHABLE: Final = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH})
_SUBJECT: Final = re.compile(
    # /api/models/org/name…, /datasets/org/name/resolve/…, /org/name/resolve/…
    r"^/(?:api/(?:models|datasets)/|datasets/(?=.+/resolve/)|(?=[^/]+(?:/[^/]+)?/resolve/))"
    r"(?P<name>[^/]+(?:/(?!resolve/|revision/|tree/|commit/|paths-info)[^/]+)?)"
)
_DATASETS_OWN: Final = re.compile(r"Couldn't reach '(?P<name>[^']+)' on the Hub")


def sentence(error: BaseException, description: str) -> str:
    """`description` is the reason if none of the usual ones is found."""
    links = list(_links(error))
    host, subject = _target(links)
    named = f" for {subject}" if subject else ""
    return f"Could not reach {host}{named}: {_reason(links) or description}."


def _links(error: BaseException) -> Iterator[BaseException]:
    """The error and those that it was raised from or while handling."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__


def _target(links: Sequence[BaseException]) -> tuple[str, str]:
    """Host, and the model or data set if the request names one."""
    for link in links:
        url = urlsplit(_url(link))
        if url.hostname:
            host = url.hostname if url.port is None else f"{url.hostname}:{url.port}"
            found = _SUBJECT.match(url.path)
            return host, found["name"] if found else ""
    named = next(filter(None, (_DATASETS_OWN.search(str(link)) for link in links)), None)
    on_hub = named or any(type(link).__module__.startswith("huggingface_hub") for link in links)
    return "the Hub" if on_hub else "the network", named["name"] if named else ""


def _url(error: BaseException) -> str:
    """Of the request that failed; empty if the error has none."""
    try:
        return str(error.request.url)  # type: ignore[attr-defined]
    except (AttributeError, RuntimeError):  # RuntimeError: httpx, for an error without its request
        return ""


def _reason(links: Sequence[BaseException]) -> str:
    if any(getattr(link, "errno", None) in _UNREACHABLE for link in links):
        return "no route to it"
    # The deepest knows best: a library may call a refused connection a timeout.
    for link in reversed(links):
        text = f"{' '.join(kind.__name__ for kind in type(link).__mro__)} {link}"
        for pattern, reason in _REASONS:
            if re.search(pattern, text, re.IGNORECASE):
                return reason
    return ""
