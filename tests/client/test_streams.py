"""Streams of a job through connections that end too early, and where too many are open."""

import asyncio
import json
import threading
import time

import pytest
from finetune_client import AsyncClient, Client, FineTuneError
from finetune_client.errors import UnexpectedAnswerError
from finetune_client.http import flows, streams

from service.api.http.limits import StreamSlots
from service.api.live import streams as served
from service.api.problems.errors import TooManyStreamsError
from tests.api.conftest import Server
from tests.api.factories import add_job
from tests.client.lossy_proxy import proxy
from tests.support.live_streams import append
from tests.support.store.job_rows import put


@pytest.fixture(autouse=True)
def comes_back_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "_RETRY_MS", (1, 1))


class TestEvents:
    def test_arrive_once_over_many_connections(self, server: Server, fast_retries: None) -> None:
        job_id = add_job(server.database)
        append(server.database, job_id, *range(300))
        with (
            proxy(server.url, lose=5, after_bytes=6000) as lossy,
            Client(lossy.url, "ft-none") as client,
        ):
            stream = client.jobs.stream(job_id)
            seen = [next(stream) for _ in range(300)]
            append(server.database, job_id, 300)
            put(server.database, job_id, state="succeeded")
            seen += stream
            assert lossy.connections == 6
        assert [(event.seq, event.data["n"]) for event in seen] == [(n + 1, n) for n in range(301)]

    def test_arrive_as_they_happen(self, finetune: Client, server: Server) -> None:
        job_id = add_job(server.database)
        append(server.database, job_id, 0, 1)
        stream = finetune.jobs.retrieve(job_id).stream(after=1, poll=60)
        assert next(stream).seq == 2
        began = time.monotonic()
        append(server.database, job_id, 2)
        assert next(stream).seq == 3
        assert time.monotonic() - began < 10

    def test_are_polled_where_too_many_streams_are_open(
        self, finetune: Client, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object) -> None:
            raise TooManyStreamsError("Too many are open.")

        monkeypatch.setattr(StreamSlots, "_require_room", refuse)
        job_id = add_job(server.database)
        append(server.database, job_id, *range(3))
        folder = server.settings.workspace(job_id)
        folder.mkdir(parents=True)
        (folder / "job.log").write_text("first\n")
        put(server.database, job_id, state="failed")
        assert [event.seq for event in finetune.jobs.stream(job_id, after=1)] == [2, 3]
        assert [part.content for part in finetune.jobs.stream_logs(job_id)] == ["first\n"]

    def test_by_await(self, server: Server, fast_retries: None) -> None:
        job_id = add_job(server.database)
        append(server.database, job_id, *range(50))
        put(server.database, job_id, state="succeeded")

        async def read(url: str) -> list[int]:
            async with AsyncClient(url, api_key="ft-none") as client:
                return [event.seq async for event in client.jobs.stream(job_id)]

        with proxy(server.url, lose=2, after_bytes=3000) as lossy:
            assert asyncio.run(read(lossy.url)) == list(range(1, 51))
            assert lossy.connections == 3

    def test_a_service_that_never_comes_back(
        self, server: Server, fast_retries: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(flows, "PATIENCE", 0.1)
        job_id = add_job(server.database)
        with (
            proxy(server.url, lose=10**6) as lossy,
            Client(lossy.url, "ft-none") as client,
            pytest.raises(FineTuneError, match="no answer from"),
        ):
            list(client.jobs.stream(job_id))


class TestLogs:
    def test_every_byte_once(self, server: Server, fast_retries: None) -> None:
        job_id = add_job(server.database)
        folder = server.settings.workspace(job_id)
        folder.mkdir(parents=True)
        text = "Zeile äöü €\n" * 20_000
        (folder / "job.log").write_text(text, "utf-8")
        end = threading.Timer(0.5, put, (server.database, job_id), {"state": "succeeded"})
        with (
            proxy(server.url, lose=3, after_bytes=100_000) as lossy,
            Client(lossy.url, "ft-none") as client,
        ):
            job = client.jobs.retrieve(job_id)
            end.start()
            assert "".join(part.content for part in job.stream_logs()) == text
            assert lossy.connections > 3
        end.join()


class TestParser:
    STREAM = (
        "\ufeffretry: 1500\n\n: a comment\n\nevent: notice\nid: 3\n"
        'data: {"text":\ndata: "ä\u2028€"}\n\nid: 4\r\ndata:x\r\n\r\nevent: lost\n\ndata: y\r\r\n'
    ).encode()
    FOUND = (
        streams.Message("notice", "3", '{"text":\n"ä\u2028€"}'),
        streams.Message("message", "4", "x"),
        streams.Message("message", None, "y"),
    )

    @pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
    def test_parts_of_any_size(self, size: int) -> None:
        parser = streams.Parser()
        parts = [self.STREAM[at : at + size] for at in range(0, len(self.STREAM), size)]
        found = [message for part in parts for message in parser.feed(part)]
        assert (tuple(found), parser.retry) == (self.FOUND, 1.5)
        assert found[0].json() == json.loads(found[0].data)

    @pytest.mark.parametrize("line", [b"data: " + b"x" * 1000, b"data: x\n" * 200])
    def test_a_message_without_end_is_refused(
        self, line: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(streams, "_LONGEST_MESSAGE", 100)
        with pytest.raises(UnexpectedAnswerError, match="too long"):
            list(streams.Parser().feed(line))
