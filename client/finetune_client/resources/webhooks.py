"""`client.webhooks`: where a project's events are sent, and what came of it."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

from finetune_client.http import bodies, calls
from finetune_client.http.transport import AsyncResource, Resource
from finetune_client.types import (
    Delivery,
    DeliveryState,
    Webhook,
    WebhookDeleted,
    WebhookWithSecret,
)

_ALL = "/v1/webhooks"


def _creation(url: str, events: list[str] | None, description: str | None) -> calls.Call:
    """Not sent again after a lost answer: a second webhook would send everything twice."""
    return calls.change("POST", _ALL, bodies.query(url=url, events=events, description=description))


def _update(webhook_id: str, changes: dict[str, Any]) -> calls.Call:
    return calls.Call("PATCH", calls.webhook(webhook_id), json=changes, is_repeatable=True)


def _rotation(webhook_id: str, overlap_seconds: int | None) -> calls.Call:
    body = bodies.query(overlap_seconds=overlap_seconds)
    return calls.change("POST", calls.webhook(webhook_id, "rotate"), body)


def _replay(webhook_id: str, delivery_id: str) -> calls.Call:
    path = calls.webhook(webhook_id, "deliveries", delivery_id, "replay")
    return calls.change("POST", path)


class Webhooks(Resource):
    def create(
        self, url: str, *, events: list[str] | None = None, description: str | None = None
    ) -> WebhookWithSecret:
        """Send the events of the project's jobs to `url` from now on: `job.*`, unless `events`
        names other types or patterns. Keep the `secret`: it is shown this once."""
        return self._read(WebhookWithSecret, _creation(url, events, description))

    def retrieve(self, webhook_id: str) -> Webhook:
        return self._read(Webhook, calls.get(calls.webhook(webhook_id)))

    def list(self) -> Iterator[Webhook]:
        """All of the project, the oldest first, without their secrets."""
        return self._pages(Webhook, _ALL, limit=None)

    def update(self, webhook_id: str, **changes: Any) -> Webhook:
        """Change its `url`, `events`, `description` or `enabled`."""
        return self._read(Webhook, _update(webhook_id, changes))

    def rotate(self, webhook_id: str, *, overlap_seconds: int | None = None) -> WebhookWithSecret:
        """A new secret, which is shown this once; the old one signs as well for a while."""
        return self._read(WebhookWithSecret, _rotation(webhook_id, overlap_seconds))

    def test(self, webhook_id: str) -> Delivery:
        """Send a test event; `deliveries` shows what came of it."""
        return self._read(Delivery, calls.change("POST", calls.webhook(webhook_id, "test")))

    def deliveries(
        self, webhook_id: str, *, state: DeliveryState | None = None
    ) -> Iterator[Delivery]:
        """What was sent, the newest first."""
        return self._pages(Delivery, calls.webhook(webhook_id, "deliveries"), state=state)

    def replay(self, webhook_id: str, delivery_id: str) -> Delivery:
        """Send the event of a delivery again."""
        return self._read(Delivery, _replay(webhook_id, delivery_id))

    def delete(self, webhook_id: str) -> WebhookDeleted:
        return self._read(WebhookDeleted, calls.change("DELETE", calls.webhook(webhook_id)))


class AsyncWebhooks(AsyncResource):
    """The methods of `Webhooks`, to await or to iterate over with `async for`."""

    async def create(
        self, url: str, *, events: list[str] | None = None, description: str | None = None
    ) -> WebhookWithSecret:
        return await self._read(WebhookWithSecret, _creation(url, events, description))

    async def retrieve(self, webhook_id: str) -> Webhook:
        return await self._read(Webhook, calls.get(calls.webhook(webhook_id)))

    def list(self) -> AsyncIterator[Webhook]:
        return self._pages(Webhook, _ALL, limit=None)

    async def update(self, webhook_id: str, **changes: Any) -> Webhook:
        return await self._read(Webhook, _update(webhook_id, changes))

    async def rotate(
        self, webhook_id: str, *, overlap_seconds: int | None = None
    ) -> WebhookWithSecret:
        return await self._read(WebhookWithSecret, _rotation(webhook_id, overlap_seconds))

    async def test(self, webhook_id: str) -> Delivery:
        return await self._read(Delivery, calls.change("POST", calls.webhook(webhook_id, "test")))

    def deliveries(
        self, webhook_id: str, *, state: DeliveryState | None = None
    ) -> AsyncIterator[Delivery]:
        return self._pages(Delivery, calls.webhook(webhook_id, "deliveries"), state=state)

    async def replay(self, webhook_id: str, delivery_id: str) -> Delivery:
        return await self._read(Delivery, _replay(webhook_id, delivery_id))

    async def delete(self, webhook_id: str) -> WebhookDeleted:
        return await self._read(WebhookDeleted, calls.change("DELETE", calls.webhook(webhook_id)))
