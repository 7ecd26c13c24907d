"""How requests are sent, waited for and refused, by a server that answers what a test tells it."""

import asyncio
import pickle
import ssl
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import partial
from json import dumps
from pathlib import Path
from typing import Any

import finetune_client
import httpx
import pytest
from finetune_client import AsyncClient, Client, types
from finetune_client.errors import APIError, of_answer
from finetune_client.http import flows, retries

from tests.support.servers.scripted_service import Service, serving, untrusted_certificate

BUSY = '{"code": "overloaded", "message": "busy"}'
QUEUED = '{"id": "job-1", "state": "queued", "stage": "prepare"}'
STREAM = {"Content-Type": "text/event-stream"}
FILE = {"id": "f", "bytes": 1, "created_at": 1, "filename": "f", "purpose": "p", "sha256": "0"}


def event(seq: int) -> str:
    """A message of a stream."""
    at = "2026-01-01T00:00:00Z"
    found = {"seq": seq, "epoch": 1, "type": "notice", "at": at, "data": {}}
    return f"id: {seq}\ndata: {dumps(found)}\n\n"


@pytest.fixture
def service(fast_retries: None) -> Iterator[Service]:
    with serving() as server:
        yield server


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with Client(service.url, "ft-none") as client:
        yield client


class TestRetryAfter:
    @pytest.mark.parametrize(
        ("text", "seconds"),
        [("3", 3.0), ("0.5", 0.5), ("-1", None), ("nan", None), ("soon", None), ("", None)],
    )
    def test_seconds(self, text: str, seconds: float | None) -> None:
        wait = retries.seconds(0, httpx.Headers({"Retry-After": text}))
        if seconds is None:
            assert 0.375 <= wait <= 0.5
        else:
            assert wait == seconds

    @pytest.mark.parametrize("zone", ["GMT", "-0000"])
    def test_a_date(self, zone: str) -> None:
        at = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
        text = at.replace("GMT", zone)
        assert 28 < retries.seconds(0, httpx.Headers({"Retry-After": text})) <= 30

    def test_a_date_that_has_passed(self) -> None:
        text = "Sun, 06 Nov 1994 08:49:37 GMT"
        assert retries.seconds(0, httpx.Headers({"Retry-After": text})) == 0

    def test_is_followed(self, service: Service, client: Client) -> None:
        service.answers = [
            (429, BUSY, {"Retry-After": "0.2"}),
            (200, '{"id": "j", "deleted": true}'),
        ]
        began = time.monotonic()
        client.jobs.delete("j")
        assert time.monotonic() - began >= 0.2

    def test_the_thousandth_wait_does_not_overflow(self) -> None:
        assert retries.seconds(5000) <= retries.MOST_WAIT


class TestArguments:
    @pytest.mark.parametrize("options", [{"timeout": 0}, {"timeout": -1}, {"max_retries": -1}])
    def test_that_no_client_can_follow(self, options: dict[str, Any]) -> None:
        with pytest.raises(finetune_client.InvalidArgumentError):
            Client("http://127.0.0.1:9", **options)

    def test_an_empty_id_names_no_other_resource(self, client: Client) -> None:
        with pytest.raises(finetune_client.InvalidArgumentError, match="an id is empty"):
            client.jobs.retrieve("")

    @pytest.mark.parametrize("key", ["ключ", "a\nb"])
    def test_a_key_that_no_header_can_hold(self, client: Client, key: str) -> None:
        with pytest.raises(finetune_client.InvalidArgumentError, match="idempotency key"):
            client.jobs.create({}, idempotency_key=key)

    @pytest.mark.parametrize("force", [True, False])
    def test_force_is_a_parameter_and_no_section(
        self, service: Service, client: Client, *, force: bool
    ) -> None:
        calls: list[Callable[..., object]] = [
            client.jobs.create,
            client.jobs.validate,
            client.jobs.preview,
            partial(client.jobs.clone, "job-1"),
            client.searches.create,
            client.searches.validate,
        ]
        for call in calls:
            service.answers = [(422, '{"code": "invalid_spec", "message": "no"}')]
            with pytest.raises(finetune_client.InvalidSpecError):
                call(force=force, name="one")
        assert ["force=true" in path for path in service.paths_seen] == [force] * 6
        assert service.bodies_seen == [{"name": "one"}] * 6

    def test_an_object_that_json_cannot_hold(self, client: Client) -> None:
        with pytest.raises(finetune_client.InvalidArgumentError, match="object is not JSON"):
            client.jobs.create({}, metadata={"team": object()})

    def test_models_paths_and_times_anywhere_in_a_spec(
        self, service: Service, client: Client
    ) -> None:
        service.answers = [(422, '{"code": "invalid_spec", "message": "no"}')]
        webhook = types.JobWebhook(url="https://ci.example.com", secret="ci")
        with pytest.raises(finetune_client.InvalidSpecError):
            client.jobs.create(
                model={"name_or_path": Path("/models/bert")},
                webhooks=[webhook],
                metadata={"at": datetime(2026, 1, 2, tzinfo=UTC)},
            )
        assert service.bodies_seen == [
            {
                "model": {"name_or_path": "/models/bert"},
                "webhooks": [{"url": "https://ci.example.com", "secret": "ci"}],
                "metadata": {"at": "2026-01-02T00:00:00+00:00"},
            }
        ]

    def test_a_time_without_a_zone_is_this_clocks(self, service: Service, client: Client) -> None:
        service.answers = [(200, '{"data": [], "has_more": false}')]
        naive = datetime(2026, 1, 2, 3)
        assert list(client.jobs.list(created_after=naive)) == []
        sent = httpx.URL(service.paths_seen[0]).params["created_after"]
        assert datetime.fromisoformat(sent) == naive.astimezone()

    def test_without_a_project_there_is_no_header(
        self, service: Service, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FINETUNE_PROJECT", "")
        service.answers = [(200, '{"data": [], "has_more": false}')]
        with Client(service.url) as client:
            list(client.jobs.list())
        assert "FineTune-Project" not in service.headers_seen[0]


class TestAnswers:
    def test_a_damaged_compression_is_an_error(self, service: Service, client: Client) -> None:
        service.answers = [(200, "no gzip", {"Content-Encoding": "gzip"})] * 3
        with pytest.raises(finetune_client.APIConnectionError):
            client.jobs.retrieve("job-1")

    @pytest.mark.parametrize("body", ['{"error": "no"}', '{"data": [], "has_more": true}'])
    def test_no_list(self, service: Service, client: Client, body: str) -> None:
        service.answers = [(200, body)]
        with pytest.raises(finetune_client.UnexpectedAnswerError, match="list"):
            list(client.jobs.list())

    def test_a_download_is_not_the_page_of_a_redirect(
        self, service: Service, client: Client, tmp_path: Path
    ) -> None:
        service.answers = [(200, dumps(FILE)), (302, "<html>")]
        with pytest.raises(finetune_client.UnexpectedAnswerError, match="redirects"):
            client.files.content("f", tmp_path / "f")
        assert list(tmp_path.iterdir()) == []

    def test_of_a_closed_client(self, service: Service) -> None:
        client = Client(service.url)
        client.close()
        with pytest.raises(finetune_client.InvalidArgumentError, match="closed"):
            client.jobs.retrieve("job-1")

        async def closed() -> None:
            client = AsyncClient(service.url)
            await client.close()
            await client.jobs.retrieve("job-1")

        with pytest.raises(finetune_client.InvalidArgumentError, match="closed"):
            asyncio.run(closed())


class TestWait:
    def test_outlasts_a_service_that_is_busy(self, service: Service, client: Client) -> None:
        deleted = (404, '{"code": "job_not_found", "message": "deleted"}')
        service.answers = [(503, BUSY), (429, BUSY), None, (200, QUEUED), deleted]
        with pytest.raises(finetune_client.NotFoundError):
            client.jobs.wait("job-1", poll=0.01)
        assert service.answers == []

    def test_its_timeout_ends_a_longer_sleep(self, service: Service, client: Client) -> None:
        service.answers = [(200, QUEUED)] * 2
        began = time.monotonic()
        with pytest.raises(finetune_client.WaitTimeoutError, match="it is queued"):
            client.jobs.wait("job-1", timeout=0.3, poll=60)
        assert time.monotonic() - began < 30

    def test_its_timeout_holds_without_an_answer(self, service: Service, client: Client) -> None:
        service.answers = [None] * 1000
        began = time.monotonic()
        with pytest.raises(finetune_client.WaitTimeoutError, match="no answer from"):
            client.jobs.wait("job-1", timeout=0.3)
        assert time.monotonic() - began < 5

    def test_something_else_is_not_a_job(self, service: Service, client: Client) -> None:
        service.answers = [(200, "{}")]
        with pytest.raises(finetune_client.UnexpectedAnswerError):
            client.jobs.wait("job-1")


class TestStream:
    def test_a_slow_reader_is_not_silence_of_the_service(
        self, service: Service, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(flows, "PATIENCE", 0.5)
        end = "event: end\ndata: {}\n\n"
        service.answers = [
            (200, f"retry: 1\n{event(1)}", STREAM),
            (200, "", STREAM),
            (200, event(2) + end, STREAM),
        ]
        seen = []
        for item in client.jobs.stream("job-1"):
            seen.append(item.seq)
            time.sleep(0.6)
        assert seen == [1, 2]


class TestErrors:
    @pytest.mark.parametrize(
        ("status", "body", "action"),
        [
            (401, '{"code": "unauthorized"}', "Set FINETUNE_API_KEY"),
            (409, '{"code": "webhook_disabled"}', "Enable the webhook"),
            (409, '{"code": "wrong_state"}', "Read its state again"),
            (503, "<html>", "Try again"),
            (
                422,
                '{"code": "invalid_spec", "errors": [{"path": "task", "suggestion": "chat"}]}',
                "task: did you mean 'chat'?",
            ),
        ],
    )
    def test_say_what_to_do(self, status: int, body: str, action: str) -> None:
        found = of_answer(httpx.Response(status, text=body))
        assert found.action.startswith(action)

    def test_every_kind_has_an_action(self) -> None:
        waiting = list(finetune_client.FineTuneError.__subclasses__())
        while waiting:
            kind = waiting.pop()
            waiting += kind.__subclasses__()
            if kind.__name__ in finetune_client.__all__ and kind is not APIError:
                assert kind.action or hasattr(kind("", "", "", "act"), "action"), kind

    def test_reach_another_process(self) -> None:
        body = {"code": "job_ended", "message": "It has ended.", "errors": [1, {"path": "a"}]}
        sent = of_answer(httpx.Response(409, json=body, headers={"X-Request-Id": "r"}))
        found = pickle.loads(pickle.dumps(sent))
        assert type(found) is finetune_client.ConflictError
        assert (found.code, str(found), found.request_id) == ("job_ended", "It has ended.", "r")
        assert found.errors == [{"path": "a"}]
        failed = finetune_client.JobFailedError("job-1", "out_of_memory", "Too large.", "Halve it.")
        assert str(pickle.loads(pickle.dumps(failed))) == (
            "job-1: out_of_memory: Too large. Halve it."
        )


class TestAsync:
    def test_leaving_a_loop_early_closes_the_connection(self, service: Service) -> None:
        service.answers = [(200, event(1) * 10_000, STREAM)]

        async def read() -> int:
            async with AsyncClient(service.url, max_retries=0) as client:
                stream = client.jobs.stream("job-1")
                assert (await anext(stream)).seq == 1
                await stream.aclose()  # type: ignore[attr-defined]
                pool = client._transport._http._transport._pool  # type: ignore[attr-defined]
                return len(pool.connections)

        assert asyncio.run(read()) == 0

    def test_a_cancelled_wait_ends_at_once(self, service: Service) -> None:
        service.answers = [(200, QUEUED)]

        async def wait() -> float:
            async with AsyncClient(service.url) as client:
                began = time.monotonic()
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(client.jobs.wait("job-1", poll=60), 0.2)
                return time.monotonic() - began

        assert asyncio.run(wait()) < 5


class TestCertificates:
    def test_that_of_the_environment_is_trusted(
        self, service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = untrusted_certificate(tmp_path)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        service.socket = context.wrap_socket(service.socket, server_side=True)
        service.answers = [(200, '{"data": [], "has_more": false}')]
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
        with Client(f"https://127.0.0.1:{service.server_address[1]}") as client:
            assert list(client.jobs.list()) == []

    def test_one_that_is_not_there_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
        with pytest.raises(finetune_client.InvalidArgumentError, match="SSL_CERT_FILE"):
            Client("https://127.0.0.1:9")
