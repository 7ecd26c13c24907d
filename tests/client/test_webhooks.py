"""The client's webhooks on a real server."""

import asyncio

import finetune_client
import pytest
from finetune_client import AsyncClient, Client, types

from tests.api.conftest import Server
from tests.api.factories import SPEC

URL = "https://hooks.example.com/finetune"


def test_make_change_test_replay_and_delete(finetune: Client) -> None:
    webhooks = finetune.webhooks
    made = webhooks.create(URL, events=["job.*"], description="CI")
    assert (made.url, made.events, made.description) == (URL, ["job.*"], "CI")
    assert made.secret.startswith("whsec_")
    shown = f"{made!r} {made} {made._repr_html_()} {finetune_client.Table([made])}"
    assert made.secret not in shown
    assert [each.id for each in webhooks.list()] == [made.id]
    assert webhooks.update(made.id, description=None).description is None
    assert webhooks.rotate(made.id, overlap_seconds=60).secret != made.secret
    sent = webhooks.test(made.id)
    assert (sent.type, sent.state) == ("webhook.test", "pending")
    again = webhooks.replay(made.id, sent.id)
    assert again.event == sent.event
    assert [each.id for each in webhooks.deliveries(made.id)] == [again.id, sent.id]
    assert list(webhooks.deliveries(made.id, state="failed")) == []
    assert webhooks.update(made.id, enabled=False).enabled is False
    with pytest.raises(finetune_client.ConflictError) as refused:
        webhooks.test(made.id)
    assert (refused.value.code, refused.value.action) == (
        "webhook_disabled",
        "Enable the webhook first.",
    )
    assert webhooks.delete(made.id).deleted is True
    with pytest.raises(finetune_client.NotFoundError):
        webhooks.retrieve(made.id)


def test_by_await_and_of_a_job(server: Server) -> None:
    async def life() -> list[types.Delivery]:
        async with AsyncClient(server.url, api_key="ft-none") as client:
            made = await client.webhooks.create(URL, events=["*"])
            assert [each.id async for each in client.webhooks.list()] == [made.id]
            job = await client.jobs.create(SPEC)
            await job.cancel()
            return [each async for each in job.deliveries()]

    assert "job.cancelled" in [each.type for each in asyncio.run(life())]
