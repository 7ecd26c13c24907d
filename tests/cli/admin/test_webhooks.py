"""`finetune webhooks`: the secret is shown once, and each command does what it says."""

from service.store.database import Database
from tests.cli.conftest import Cli
from tests.support.factories import make_job

URL = "https://ci.example.com/hooks/finetune"


def test_a_webhook_from_its_making_to_its_end(cli: Cli, api: str, store: Database) -> None:
    made = cli("webhooks", "create", URL, "--event", "job.failed", "--json").json()
    assert (made["url"], made["events"], made["enabled"]) == (URL, ["job.failed"], True)
    assert made["secret"].startswith("whsec_")
    hook = made["id"]

    shown = cli("webhooks", "show", hook)
    assert f"url: {URL}\n" in shown.out
    listed = cli("webhooks", "list", "--json").json()["data"]
    assert [(one["id"], "secret" in one) for one in listed] == [(hook, False)]

    sent = cli("webhooks", "test", hook, "--json").json()
    assert (sent["type"], sent["state"]) == ("webhook.test", "pending")
    again = cli("webhooks", "replay", hook, sent["id"], "--json").json()
    assert again["id"] != sent["id"]
    assert again["event"] == sent["event"]
    found = cli("webhooks", "deliveries", hook, "--json").json()["data"]
    assert [one["id"] for one in found] == [again["id"], sent["id"]]

    rotated = cli("webhooks", "rotate", hook, "--overlap-seconds", "60", "--json").json()
    assert rotated["secret"] not in ("", made["secret"])
    assert rotated["previous_secret_until"] is not None

    assert cli("webhooks", "disable", hook, "--json").json()["disabled_reason"] == "user"
    assert "is disabled" in cli("webhooks", "test", hook).err
    assert cli("webhooks", "enable", hook, "--json").json()["enabled"] is True

    assert cli("webhooks", "delete", hook, "--json").json()["deleted"] is True
    assert cli("webhooks", "list", "--json").json() == {"data": []}


def test_an_event_for_a_receiver_in_a_spec_is_sent_again(
    cli: Cli, api: str, store: Database
) -> None:
    job_id = make_job(store, webhooks=[{"url": URL, "secret": "ci", "events": ["job.submitted"]}])
    [sent] = cli("webhooks", "deliveries", job_id, "--json").json()["data"]
    again = cli("webhooks", "replay", job_id, sent["id"], "--json").json()
    assert (again["url"], again["event"]) == (URL, sent["event"])
    assert "job.submitted" in cli("webhooks", "deliveries", job_id).out


def test_a_receiver_that_is_not_allowed(cli: Cli, api: str, store: Database) -> None:
    refused = cli("webhooks", "create", "http://127.0.0.1:8094/")
    assert refused.status != 0
    assert "FINETUNE_WEBHOOK_ALLOW" in refused.err
