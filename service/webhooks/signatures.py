"""Secrets of webhooks and what they sign, as the Standard Webhooks specification says."""

import base64
import binascii
import secrets
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from standardwebhooks.webhooks import EmptyWebhookSecretError, Webhook

PREFIX: Final = "whsec_"
_SECRET_BYTES: Final = 32


class UnusableSecretError(Exception):
    """The text is not a secret that can sign."""


def new_secret() -> str:
    """`whsec_` and the base64 of 32 random bytes."""
    return PREFIX + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()


def headers(event_id: str, body: str, signing: Sequence[str], now: datetime) -> dict[str, str]:
    """The three headers of a request at this moment; one signature for each secret, the newest
    first. Raises UnusableSecretError."""
    try:
        signatures = [Webhook(secret).sign(event_id, now, body) for secret in signing]
    except (binascii.Error, ValueError, EmptyWebhookSecretError):
        raise UnusableSecretError("the secret must be `whsec_` and base64") from None
    return {
        "webhook-id": event_id,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": " ".join(signatures),
    }
