"""One try of a delivery: open the secrets, sign, send, and judge the answer."""

import json
import re
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, Final

import httpcore
import httpx

from service.contract import webhooks
from service.settings import Settings
from service.store.webhooks.deliveries import Claimed, Outcome
from service.system.secret_box import SecretBox, SecretUnreadableError
from service.webhooks import signatures
from service.webhooks.addresses import Allowed, ReceiverNotAllowedError, check_url
from service.webhooks.connections import CheckedBackend, Deadlines

TRY_SECONDS: Final = 10.0
"""From the connection to the end of the answer."""
_MOST_CONNECTIONS: Final = 64
_KEPT_CONNECTIONS: Final = 16
_KEPT_SECONDS: Final = 15.0
_LONGEST_ERROR: Final = 300
_SECONDS: Final = re.compile(rb"[0-9]{1,9}")


class Requests:
    """Sends deliveries; any number of threads may use it at once."""

    def __init__(self, settings: Settings, *, try_seconds: float = TRY_SECONDS) -> None:
        self._box = SecretBox(settings.secrets_file)
        self._public_url = (settings.public_url or "").rstrip("/")
        self._allowed = Allowed.parse(settings.webhook_allow)
        self._deadlines = Deadlines()
        self._try_seconds = try_seconds
        # Not httpx.Client, which keeps cookies and reads proxies from the environment.
        self._pool = httpcore.ConnectionPool(
            ssl_context=httpx.create_ssl_context(),
            max_connections=_MOST_CONNECTIONS,
            max_keepalive_connections=_KEPT_CONNECTIONS,
            keepalive_expiry=_KEPT_SECONDS,
            network_backend=CheckedBackend(self._allowed, self._deadlines),
        )
        self._agent = f"finetune-service/{version('finetune-service')}"

    def close(self) -> None:
        self._pool.close()

    def send(self, claimed: Claimed) -> Outcome:
        """Try once; every failure is in the outcome."""
        try:
            url = check_url(claimed.url, self._allowed)
        except ReceiverNotAllowedError as error:
            # A later try would fail in the same way. A name's address, which is checked below, may
            # change.
            return Outcome(claimed, error=_short(f"the URL is not allowed: {error}"), is_final=True)
        try:
            # The same text at each try.
            body = json.dumps(self._absolute(claimed.payload), separators=(",", ":"))
            signed = signatures.headers(
                claimed.event_id, body, self._opened(claimed), datetime.now(UTC)
            )
            return self._post(claimed, url, body, signed)
        except (
            ReceiverNotAllowedError,
            SecretUnreadableError,
            signatures.UnusableSecretError,
        ) as error:
            return Outcome(claimed, error=_short(str(error)))
        except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError) as error:
            return Outcome(claimed, error=_short(f"{type(error).__name__}: {error}".rstrip(": ")))
        except OSError as error:  # for example a certificate's
            return Outcome(claimed, error=_short(str(error)))

    def _opened(self, claimed: Claimed) -> list[str]:
        if not claimed.secrets:
            raise SecretUnreadableError("the secret that signs was deleted")
        return [self._box.open(claimed.project, one.name, one.content) for one in claimed.secrets]

    def _absolute(self, payload: dict[str, Any]) -> dict[str, Any]:
        urls = payload["data"].get("urls")
        if not urls or not self._public_url:
            return payload
        absolute = {name: f"{self._public_url}{path}" for name, path in urls.items()}
        return {**payload, "data": {**payload["data"], "urls": absolute}}

    def _post(self, claimed: Claimed, url: httpx.URL, body: str, signed: dict[str, str]) -> Outcome:
        headers = {
            "host": url.netloc.decode("ascii"),
            "content-type": "application/json",
            "user-agent": self._agent,
            "accept-encoding": "identity",
            "idempotency-key": claimed.event_id,
            **signed,
        }
        timeouts = dict.fromkeys(("connect", "read", "write", "pool"), self._try_seconds)
        self._deadlines.begin(self._try_seconds)
        with self._pool.stream(
            "POST",
            httpcore.URL(
                scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
            ),
            headers=[(name.encode(), value.encode()) for name, value in headers.items()],
            content=body.encode(),
            extensions={"timeout": timeouts},
        ) as response:
            answer = _beginning(response)
            return _judged(claimed, response, answer)


def _beginning(response: httpcore.Response) -> str:
    """What is kept of the answer. The status has decided already: an answer that breaks off does
    no harm."""
    content = bytearray()
    with suppress(httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError):
        for part in response.iter_stream():
            content += part
            if len(content) >= webhooks.LONGEST_ANSWER:
                break
    text = bytes(content[: webhooks.LONGEST_ANSWER]).decode("utf-8", "replace")
    return text.replace("\x00", "")


def _judged(claimed: Claimed, response: httpcore.Response, answer: str) -> Outcome:
    status = response.status
    if 200 <= status < 300:
        return Outcome(claimed, status=status, answer=answer)
    redirected = ": redirects are not followed" if 300 <= status < 400 else ""
    return Outcome(
        claimed,
        status=status,
        answer=answer,
        error=f"the receiver answered HTTP {status}{redirected}",
        is_final=status == 410,
        retry_after=_retry_after(response),
    )


def _retry_after(response: httpcore.Response) -> float:
    """What the header says in seconds; a date, or anything else, counts as nothing."""
    for name, value in response.headers:
        if name.lower() == b"retry-after" and _SECONDS.fullmatch(value):
            return float(value)
    return 0.0


def _short(text: str) -> str:
    return text.replace("\x00", "")[:_LONGEST_ERROR]
