"""Webhooks by HTTP: a secret is shown once, foreign ones do not exist, numbers are bounded."""

from typing import Any

import httpx
import pytest

from service.store.scope import EVERYTHING
from service.store.webhooks import endpoints
from service.system.secret_box import SecretBox
from tests.api.conftest import Server, code
from tests.api.factories import spec
from tests.support.factories import make_job
from tests.support.store.databases import on_both

URL = "https://ci.example.com/hooks"


def make(client: httpx.Client, **given: Any) -> dict[str, Any]:
    answer = client.post("/v1/webhooks", json={"url": URL} | given)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


class TestEndpoints:
    def test_the_secret_is_shown_once_and_stored_sealed(self, server: Server) -> None:
        made = make(server.client, events=["job.failed"], description="CI")
        secret = made.pop("secret")
        assert secret.startswith("whsec_")
        assert (made["events"], made["enabled"], made["description"]) == (
            ["job.failed"],
            True,
            "CI",
        )
        assert server.client.get(f"/v1/webhooks/{made['id']}").json() == made
        listed = server.client.get("/v1/webhooks")
        assert listed.json()["data"] == [made]
        assert secret not in listed.text
        with server.database.read() as session:
            row = endpoints.get(session, EVERYTHING, made["id"])
        assert secret not in row.sealed
        box = SecretBox(server.settings.secrets_file)
        assert box.open("default", f"webhooks/{row.id}", row.sealed) == secret

    def test_a_rotation_keeps_the_old_secret_for_a_while(self, server: Server) -> None:
        made = make(server.client)
        path = f"/v1/webhooks/{made['id']}/rotate"
        rotated = server.client.post(path, json={"overlap_seconds": 60}).json()
        assert rotated["secret"] != made["secret"]
        assert rotated["previous_secret_until"] is not None
        at_once = server.client.post(path, json={"overlap_seconds": 0}).json()
        assert at_once["previous_secret_until"] is None

    def test_it_is_changed_disabled_enabled_and_deleted(self, client: httpx.Client) -> None:
        path = f"/v1/webhooks/{make(client)['id']}"
        changed = client.patch(path, json={"events": ["*"], "url": None, "enabled": False}).json()
        assert (changed["events"], changed["url"]) == (["*"], URL)
        assert (changed["enabled"], changed["disabled_reason"]) == (False, "user")
        assert code(client.post(f"{path}/test")) == (409, "webhook_disabled")
        assert client.patch(path, json={"enabled": True}).json()["disabled_at"] is None
        assert client.delete(path).json()["deleted"] is True
        assert code(client.get(path)) == (404, "webhook_not_found")

    @pytest.mark.parametrize(
        "url",
        ["http://example.com/", "https://10.0.0.1/", "https://localhost/", "https://a@b.org/"],
    )
    def test_a_receiver_that_is_not_allowed(self, client: httpx.Client, url: str) -> None:
        answer = client.post("/v1/webhooks", json={"url": url})
        assert answer.status_code == 422
        patched = client.patch(f"/v1/webhooks/{make(client)['id']}", json={"url": url})
        assert patched.status_code == 422

    def test_a_project_has_twenty(self, client: httpx.Client) -> None:
        for _ in range(20):
            make(client)
        assert code(client.post("/v1/webhooks", json={"url": URL})) == (429, "quota_exceeded")


@on_both
class TestDeliveries:
    def test_they_are_listed_by_pages_and_replayed(self, server: Server) -> None:
        client, made = server.client, make(server.client, events=["job.submitted"])
        job_id = make_job(server.database)
        path = f"/v1/webhooks/{made['id']}/deliveries"
        [delivery] = client.get(path).json()["data"]
        assert (delivery["job"], delivery["type"]) == (job_id, "job.submitted")
        assert (delivery["state"], delivery["tries"]) == ("pending", 0)
        again = client.post(f"{path}/{delivery['id']}/replay")
        assert again.status_code == 202
        assert again.json()["event"] == delivery["event"]
        page = client.get(path, params={"limit": 1}).json()
        assert (page["has_more"], page["data"][0]["id"]) == (True, again.json()["id"])
        rest = client.get(path, params={"after": page["last_id"]}).json()
        assert [each["id"] for each in rest["data"]] == [delivery["id"]]
        of_job = client.get(f"/v1/jobs/{job_id}/deliveries").json()
        assert len(of_job["data"]) == 2

    def test_an_event_for_a_receiver_in_a_spec_is_replayed(self, server: Server) -> None:
        client = server.client
        given = {"url": URL, "secret": "ci", "events": ["job.submitted"]}
        path = f"/v1/jobs/{make_job(server.database, webhooks=[given])}/deliveries"
        [delivery] = client.get(path).json()["data"]
        again = client.post(f"{path}/{delivery['id']}/replay")
        assert again.status_code == 202, again.text
        kept = ("webhook", "job", "url", "event", "type", "payload")
        assert [again.json()[name] for name in kept] == [delivery[name] for name in kept]
        assert [each["id"] for each in client.get(path).json()["data"]] == [
            again.json()["id"],
            delivery["id"],
        ]
        with server.database.read() as session:
            rows, _ = endpoints.deliveries(session, EVERYTHING, limit=2)
        assert [(row.secret_name, row.lane) for row in rows] == [("ci", rows[0].lane)] * 2
        other = f"/v1/jobs/{make_job(server.database)}/deliveries/{delivery['id']}/replay"
        assert client.post(other).json()["code"] == "delivery_not_found"

    def test_of_a_job_no_event_is_replayed_to_a_disabled_webhook(self, server: Server) -> None:
        client, made = server.client, make(server.client, events=["job.submitted"])
        path = f"/v1/jobs/{make_job(server.database)}/deliveries"
        [delivery] = client.get(path).json()["data"]
        client.patch(f"/v1/webhooks/{made['id']}", json={"enabled": False})
        assert code(client.post(f"{path}/{delivery['id']}/replay")) == (409, "webhook_disabled")
        assert len(client.get(path).json()["data"]) == 1

    def test_a_test_event(self, client: httpx.Client) -> None:
        made = make(client, events=["job.failed"])
        answer = client.post(f"/v1/webhooks/{made['id']}/test")
        assert answer.status_code == 202
        assert answer.json()["payload"]["type"] == "webhook.test"


def test_receivers_in_a_spec_are_checked(client: httpx.Client) -> None:
    receivers = [{"url": "https://10.0.0.1/", "secret": "ci"}]
    body = spec(webhooks=receivers)
    faults = client.post("/v1/jobs", json=body).json()["errors"]
    assert [(fault["path"], fault["code"]) for fault in faults] == [
        ("webhooks.0.secret", "secret_not_found"),
        ("webhooks.0.url", "receiver_not_allowed"),
    ]
    client.put("/v1/secrets/ci", json={"value": "whsec_bmV3IHNlY3JldCBuZXcgc2VjcmV0"})
    receivers[0]["url"] = URL
    answer = client.post("/v1/jobs", json=body)
    assert answer.status_code == 201, answer.text
