"""The sender and a real receiver: signatures, tries, fairness, and who may not be reached."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from sqlalchemy import update
from structlog.testing import capture_logs

from service.contract import webhooks as webhooks_contract
from service.contract.states import JobState
from service.jobs import background_loop
from service.settings import Settings
from service.store.database import Database, db_now
from service.store.jobs import state as jobs
from service.store.projects import secrets
from service.store.scope import EVERYTHING
from service.store.tables.teams import AuditRow
from service.store.tables.webhooks import DeliveryRow, WebhookRow
from service.store.webhooks import deliveries as store_deliveries
from service.store.webhooks import endpoints
from service.system.secret_box import SecretBox
from service.webhooks import sender
from tests.support.factories import make_job
from tests.support.servers.webhooks import Receiver, endpoint, sending, wait_for
from tests.support.store.databases import on_sqlite
from tests.support.store.projects import make_job_of, make_project

pytestmark = on_sqlite


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(
        home=tmp_path / "home",
        webhook_allow=["127.0.0.1"],
        public_url="https://tune.example.com/",
    )


def cancel(database: Database, job_id: str) -> None:
    with database.write() as session:
        jobs.move(session, job_id, JobState.QUEUED, JobState.CANCELLED, "cancelled")


def deliveries(database: Database) -> list[DeliveryRow]:
    with database.read() as session:
        return endpoints.deliveries(session, EVERYTHING, limit=1000)[0]


def hook(database: Database, webhook_id: str) -> WebhookRow:
    with database.read() as session:
        return endpoints.get(session, EVERYTHING, webhook_id)


def with_test_event(database: Database, settings: Settings, url: str) -> str:
    """Id of an endpoint that has a test event to receive."""
    webhook_id, _ = endpoint(database, settings, url)
    with database.write() as session:
        endpoints.test(session, EVERYTHING, webhook_id)
    return webhook_id


class TestSending:
    def test_openais_client_takes_its_event(self, database: Database, settings: Settings) -> None:
        with Receiver() as receiver:
            _, secret = endpoint(
                database, settings, receiver.url, events=("fine_tuning.job.cancelled",)
            )
            job_id = make_job(database)
            cancel(database, job_id)
            with sending(database, settings):
                wait_for(lambda: [row.state for row in deliveries(database)] == ["delivered"])
            [(headers, body)] = receiver.received
        client = openai.OpenAI(api_key="none", webhook_secret=secret)
        event = client.webhooks.unwrap(body, headers)
        assert event.type == "fine_tuning.job.cancelled"
        assert event.data.id == job_id
        assert set(json.loads(body)) == {"id", "object", "created_at", "type", "data"}
        assert event.id == headers["webhook-id"] == f"evt_{job_id[4:]}_2_ft"

    def test_a_native_event_says_what_happened(
        self, database: Database, settings: Settings
    ) -> None:
        with Receiver() as receiver:
            endpoint(database, settings, receiver.url, events=("job.cancelled",))
            job_id = make_job(database, name="mine", metadata={"team": "a"})
            cancel(database, job_id)
            with sending(database, settings):
                wait_for(lambda: len(receiver.received) == 1)
            headers, text = receiver.received[0]
        body = json.loads(text)
        assert text == json.dumps(body, separators=(",", ":"))
        assert headers["host"] == httpx.URL(receiver.url).netloc.decode()
        assert headers["content-type"] == "application/json"
        assert headers["accept-encoding"] == "identity"
        assert headers["user-agent"] == f"finetune-service/{version('finetune-service')}"
        assert headers["idempotency-key"] == headers["webhook-id"] == body["id"]
        data = body["data"]
        assert (body["type"], data["id"], data["state"]) == ("job.cancelled", job_id, "cancelled")
        assert (data["name"], data["metadata"]) == ("mine", {"team": "a"})
        assert data["urls"]["job"] == f"https://tune.example.com/v1/jobs/{job_id}"
        assert data["event"]["type"] == "cancelled"

    def test_both_secrets_sign_until_the_overlap_ends(
        self, database: Database, settings: Settings
    ) -> None:
        with Receiver() as receiver:
            webhook_id, old = endpoint(database, settings, receiver.url)
            new = "whsec_" + "bmV3IHNlY3JldCBuZXcgc2VjcmV0"
            box = SecretBox(settings.secrets_file)
            with database.write() as session:
                endpoints.rotate(
                    session, EVERYTHING, webhook_id, lambda p, n: box.seal(p, n, new), 60
                )
                endpoints.test(session, EVERYTHING, webhook_id)
            with sending(database, settings):
                wait_for(lambda: len(receiver.received) == 1)
            headers, body = receiver.received[0]
        for secret in (old, new):
            openai.OpenAI(api_key="none", webhook_secret=secret).webhooks.verify_signature(
                body, headers
            )
        assert len(headers["webhook-signature"].split()) == 2

    def test_a_receiver_of_a_spec(self, database: Database, settings: Settings) -> None:
        secret, box = "whsec_bmV3IHNlY3JldCBuZXcgc2VjcmV0", SecretBox(settings.secrets_file)
        with Receiver() as receiver:
            with database.write() as session:
                secrets.put(session, "default", "ci", lambda: box.seal("default", "ci", secret))
            given = {"url": receiver.url, "secret": "ci", "events": ["job.submitted"]}
            job_id = make_job(database, webhooks=[given])
            with sending(database, settings.model_copy(update={"public_url": None})):
                wait_for(lambda: len(receiver.received) == 1)
            headers, body = receiver.received[0]
        assert json.loads(body)["data"]["urls"]["job"] == f"/v1/jobs/{job_id}"
        openai.OpenAI(api_key="none", webhook_secret=secret).webhooks.verify_signature(
            body, headers
        )


class TestFailures:
    def one(self, database: Database, settings: Settings, answer: Any) -> DeliveryRow:
        """What came of one try."""
        with Receiver(answer) as receiver:
            with_test_event(database, settings, receiver.url)
            with sending(database, settings, try_seconds=0.5):
                wait_for(lambda: deliveries(database)[0].tries == 1)
        return deliveries(database)[0]

    def test_a_refusal_is_tried_again_with_the_same_id(
        self, database: Database, settings: Settings
    ) -> None:
        with Receiver(lambda count: 500 if count == 1 else 204) as receiver:
            webhook_id = with_test_event(database, settings, receiver.url)
            with sending(database, settings):
                wait_for(lambda: deliveries(database)[0].tries == 1)
                row = deliveries(database)[0]
                assert (row.state, row.status, row.answer) == ("pending", 500, "so it is")
                assert 3.0 <= (row.due_at - row.created_at).total_seconds() < 16.0
                assert hook(database, webhook_id).failing_since is not None
                with database.write() as session:
                    session.execute(update(DeliveryRow).values(due_at=db_now()))
                wait_for(lambda: deliveries(database)[0].state == "delivered")
            first, second = receiver.ids()
        assert first == second
        assert hook(database, webhook_id).failing_since is None

    def test_a_redirect_is_not_followed(self, database: Database, settings: Settings) -> None:
        row = self.one(database, settings, lambda _: 302)
        assert (row.state, row.status) == ("pending", 302)
        assert "redirects are not followed" in (row.error or "")

    def test_410_disables_the_endpoint(self, database: Database, settings: Settings) -> None:
        row = self.one(database, settings, lambda _: 410)
        assert (row.state, row.status) == ("failed", 410)
        found = hook(database, row.webhook_id or "")
        assert (found.disabled_reason, found.disabled_at is not None) == ("gone", True)
        with database.read() as session:
            assert [entry.action for entry in session.query(AuditRow)] == ["disable_webhook_gone"]

    def test_days_of_failures_disable_it(self, database: Database, settings: Settings) -> None:
        with Receiver(lambda _: 500) as receiver:
            webhook_id = with_test_event(database, settings, receiver.url)
            with database.write() as session:
                session.execute(update(WebhookRow).values(failing_since=db_now(-3.1 * 86400)))
            with sending(database, settings):
                wait_for(lambda: hook(database, webhook_id).disabled_at is not None)
        assert hook(database, webhook_id).disabled_reason == "failing"

    def test_after_three_days_it_has_failed(self, database: Database, settings: Settings) -> None:
        with Receiver(lambda _: 500) as receiver:
            with_test_event(database, settings, receiver.url)
            with database.write() as session:
                session.execute(update(DeliveryRow).values(created_at=db_now(-3 * 86400)))
            with sending(database, settings):
                wait_for(lambda: deliveries(database)[0].state == "failed")

    def test_a_slow_receiver_ends_at_the_deadline(
        self, database: Database, settings: Settings
    ) -> None:
        def slow(_: int) -> int:
            time.sleep(1.5)
            return 204

        row = self.one(database, settings, slow)
        assert row.state == "pending"
        assert row.error is not None
        assert row.error.startswith("ReadTimeout")

    def test_a_slow_project_does_not_delay_another(
        self, database: Database, settings: Settings
    ) -> None:
        over = threading.Event()

        def slow(_: int) -> int:
            over.wait(60)
            return 204

        make_project(database, "other")
        with Receiver(slow) as busy, Receiver() as quick:
            for _ in range(4):
                endpoint(database, settings, busy.url, events=("job.submitted",))
            endpoint(database, settings, quick.url, project="other")
            for _ in range(30):
                make_job(database)
            with sending(database, settings):
                wait_for(lambda: len(busy.received) >= 16)
                job_id = make_job_of(database, "other")
                cancel(database, job_id)
                try:
                    wait_for(lambda: len(quick.received) == 2)
                    assert len(busy.received) == 16
                finally:
                    over.set()

    def test_dead_receivers_delay_no_other_of_their_project(
        self, database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        over = threading.Event()
        monkeypatch.setattr("service.contract.webhooks.MOST_ENDPOINTS", 21)

        def never(_: int) -> int:
            over.wait(20)
            return 204

        with Receiver(never) as dead, Receiver() as live:
            for _ in range(20):
                endpoint(database, settings, dead.url, events=("job.submitted",))
            for _ in range(4):
                make_job(database)  # each has an event for all of the dead
            with sending(database, settings, try_seconds=0.3):
                wait_for(lambda: sum(row.tries for row in deliveries(database)) >= 24)
                endpoint(database, settings, live.url, events=("job.submitted",))
                took = []
                for number in range(5):
                    began = time.monotonic()
                    make_job(database)
                    wait_for(lambda: len(live.received) > number)  # noqa: B023
                    took.append(time.monotonic() - began)
                assert sorted(took)[2] < 0.7, took  # a busy machine delays some of them
                over.set()

    @pytest.fixture
    def rooms(self, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
        """Those that a sender claims for."""
        rooms: list[Any] = []
        claim = store_deliveries.claim

        def noted(session: Any, room: Any) -> Any:
            rooms.append(room)
            return claim(session, room)

        monkeypatch.setattr(store_deliveries, "claim", noted)
        return rooms

    def test_a_sender_that_starts_knows_who_fails(
        self, database: Database, settings: Settings, rooms: list[Any]
    ) -> None:
        with Receiver() as receiver:
            failing, _ = endpoint(database, settings, receiver.url)
            endpoint(database, settings, receiver.url)
            with database.write() as session:
                endpoints.get(session, EVERYTHING, failing).failing_since = db_now()
                endpoints.test(session, EVERYTHING, failing)
            with sending(database, settings):
                wait_for(lambda: deliveries(database)[0].state == "delivered")
        assert rooms[0].failing == {failing}
        assert rooms[-1].failing == set()  # it has not failed this time

    def test_it_remembers_who_failed_and_logs_it_once(
        self, database: Database, settings: Settings, rooms: list[Any]
    ) -> None:
        with (
            Receiver(lambda _: 500) as broken,
            Receiver() as whole,
            capture_logs() as logs,
            sending(database, settings),
        ):
            failing = with_test_event(database, settings, broken.url)
            wait_for(lambda: deliveries(database)[0].tries == 1)
            for number in (1, 2):
                with_test_event(database, settings, whole.url)
                wait_for(lambda: len(whole.received) == number)  # noqa: B023
        assert rooms[-1].failing == {failing}
        [logged] = [each for each in logs if each["event"] == "webhook.try_failed"]
        assert (logged["webhook"], logged["status"]) == (failing, 500)
        assert logged["error"] == "the receiver answered HTTP 500"

    def test_a_receiver_has_eight_at_once(self, database: Database, settings: Settings) -> None:
        over = threading.Event()

        def slow(_: int) -> int:
            over.wait(60)
            return 204

        with Receiver(slow) as receiver:
            endpoint(database, settings, receiver.url, events=("job.submitted",))
            for _ in range(12):
                make_job(database)
            with sending(database, settings):
                try:
                    wait_for(lambda: len(receiver.received) == 8)
                    time.sleep(0.2)  # ten rounds
                    assert len(receiver.received) == 8
                finally:
                    over.set()
                wait_for(lambda: len(receiver.received) == 12)


class TestTrouble:
    """Of the sender itself: what it has claimed is sent all the same."""

    @pytest.fixture
    def sent(self, database: Database, settings: Settings) -> Iterator[Callable[[], None]]:
        with Receiver() as receiver:
            endpoint(database, settings, receiver.url, events=("job.submitted",))
            make_job(database)

            def arrives() -> None:
                with sending(database, settings):
                    wait_for(lambda: deliveries(database)[0].state == "delivered")

            yield arrives

    def test_an_unexpected_error_does_not_end_it(
        self, sent: Callable[[], None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(background_loop, "_LONGEST_BACKOFF_SECONDS", 0.01)
        claim, failed = store_deliveries.claim, threading.Event()

        def failing(*given: Any) -> Any:
            if not failed.is_set():
                failed.set()
                raise KeyError("lane")
            return claim(*given)

        monkeypatch.setattr(store_deliveries, "claim", failing)
        sent()
        assert failed.is_set()

    def test_without_a_thread_left_it_tries_again(
        self, sent: Callable[[], None], database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(webhooks_contract, "FIRST_WAIT_SECONDS", 0.01)
        start = threading.Thread.start
        refused: list[bool] = []

        def starting(thread: threading.Thread) -> None:
            if "(_send)" in thread.name and not refused:
                refused.append(thread.daemon)
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", starting)
        sent()
        assert refused == [True]  # a daemon: a slow receiver does not hold up the end of a process
        assert deliveries(database)[0].tries == 2

    def test_what_it_did_not_expect_of_a_try_is_a_failure(
        self, database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def send(*_: object) -> None:
            raise KeyError("data")

        monkeypatch.setattr("service.webhooks.requests.Requests.send", send)
        with_test_event(database, settings, "http://127.0.0.1:1/")
        with sending(database, settings):
            wait_for(lambda: deliveries(database)[0].tries == 1)
        [row] = deliveries(database)
        assert (row.state, row.error) == ("pending", "internal error of the sender")


def test_without_anything_to_send_it_rests(database: Database, settings: Settings) -> None:
    idle = sender.WebhookSender(database, settings, poll_seconds=0.3)
    began = time.monotonic()
    idle.step()
    assert time.monotonic() - began >= 0.3


class TestEnd:
    """Of the sender, while a receiver has a request."""

    @pytest.mark.parametrize(("seconds", "state"), [(5.0, "delivered"), (0.1, "pending")])
    def test_what_ends_soon_is_written(
        self,
        database: Database,
        settings: Settings,
        monkeypatch: pytest.MonkeyPatch,
        seconds: float,
        state: str,
    ) -> None:
        monkeypatch.setattr(sender, "_LAST_SECONDS", seconds)
        over, stop = threading.Event(), threading.Event()

        def slow(_: int) -> int:
            stop.set()
            over.wait(0.5 if state == "delivered" else 30)
            return 204

        with Receiver(slow) as receiver:
            with_test_event(database, settings, receiver.url)
            began = time.monotonic()
            sender.WebhookSender(database, settings, poll_seconds=0.05).run(stop)
            took = time.monotonic() - began
            over.set()
        assert deliveries(database)[0].state == state
        assert took < 4.0


class TestAddresses:
    def test_a_private_address_behind_a_name_is_not_connected_to(
        self, database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = socket.getaddrinfo

        def lookup(host: str, *arguments: Any, **options: Any) -> Any:
            host = "127.0.0.1" if host == "rebound.example.com" else host
            return real(host, *arguments, **options)

        monkeypatch.setattr(socket, "getaddrinfo", lookup)
        closed = settings.model_copy(update={"webhook_allow": []})
        with Receiver() as receiver:
            port = httpx.URL(receiver.url).port
            with_test_event(database, closed, f"https://rebound.example.com:{port}/")
            with sending(database, closed):
                wait_for(lambda: deliveries(database)[0].tries == 1)
        assert receiver.received == []
        assert "which is not a public address" in (deliveries(database)[0].error or "")

    def test_a_url_that_is_not_allowed_any_more_ends_at_once(
        self, database: Database, settings: Settings
    ) -> None:
        closed = settings.model_copy(update={"webhook_allow": []})
        with Receiver() as receiver:
            with_test_event(database, settings, receiver.url)
            with sending(database, closed):
                wait_for(lambda: deliveries(database)[0].state == "failed")
            assert (deliveries(database)[0].tries, receiver.received) == (1, [])
        assert (deliveries(database)[0].error or "").startswith("the URL is not allowed: ")

    def test_a_lookup_that_hangs_ends_at_the_deadline(
        self, database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        over = threading.Event()
        real = socket.getaddrinfo

        def lookup(host: str, *arguments: Any, **options: Any) -> Any:
            if host == "hanging.example.com":
                over.wait(30)
            return real("127.0.0.1", *arguments, **options)

        monkeypatch.setattr(socket, "getaddrinfo", lookup)
        with_test_event(database, settings, "https://hanging.example.com/")
        with sending(database, settings, try_seconds=0.3):
            wait_for(lambda: deliveries(database)[0].tries == 1)
        over.set()
        row = deliveries(database)[0]
        assert row.error == "ConnectTimeout: hanging.example.com was not looked up in time"
        assert row.state == "pending"

    def test_a_disabled_endpoint_is_sent_nothing(
        self, database: Database, settings: Settings
    ) -> None:
        with Receiver() as receiver:
            webhook_id, _ = endpoint(database, settings, receiver.url)
            make_job(database)
            with database.write() as session:
                endpoints.change(session, EVERYTHING, webhook_id, {"enabled": False})
            make_job(database)
            with sending(database, settings):
                wait_for(lambda: deliveries(database)[0].state == "failed")
        assert len(deliveries(database)) == 1
        assert receiver.received == []
