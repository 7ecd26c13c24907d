"""Live streams: each event and each byte once, however often the client connects."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy.exc import OperationalError

from service.api.http import limits
from service.api.http.limits import StreamSlots
from service.api.jobs.log_reader import read_part
from service.api.live import feed, streams
from service.api.problems.errors import TooManyStreamsError
from service.api.schemas.history import LogPart
from service.settings import Settings
from service.store.database import Database
from service.store.jobs import wake_ups, watching
from service.store.projects import keys
from service.store.tables.jobs import EventRow, JobRow
from tests.api.conftest import Server, running
from tests.api.factories import add_job
from tests.api.jobs.stage_results import log_of
from tests.support.live_streams import Message, append, stream
from tests.support.servers.services import wait_until
from tests.support.store.job_rows import put


def ids(found: list[Message]) -> list[int]:
    return [int(each["id"]) for each in found if "id" in each]


class TestEvents:
    def test_an_ended_job_is_streamed_to_its_end(self, server: Server) -> None:
        job_id = add_job(server.database)
        append(server.database, job_id, *range(250))
        put(server.database, job_id, state="succeeded")
        with stream(server.client, f"/v1/jobs/{job_id}/events/stream") as found:
            all_of_it = list(found)
        first, *events, progress, end = all_of_it
        assert 1000 <= int(first["retry"]) <= 4000
        assert ids(events) == list(range(1, 251))
        page = server.client.get(f"/v1/jobs/{job_id}/events", params={"limit": 1}).json()
        assert json.loads(events[0]["data"]) == page["data"][0]
        assert events[0]["event"] == "notice"
        assert (progress["event"], "id" in progress) == ("progress", False)
        assert json.loads(progress["data"])["state"] == "succeeded"
        assert end == {"event": "end", "data": '{"state": "succeeded"}'}

    @pytest.mark.parametrize(
        "given",
        [{"params": {"after": 3}}, {"headers": {"Last-Event-ID": "3"}, "params": {"after": 1}}],
    )
    def test_begins_after_the_last_id(self, server: Server, given: Any) -> None:
        job_id = add_job(server.database)
        append(server.database, job_id, *range(5))
        put(server.database, job_id, state="failed")
        with stream(server.client, f"/v1/jobs/{job_id}/events/stream", **given) as found:
            assert ids(list(found)) == [4, 5]

    def test_what_happens_meanwhile_arrives_once(self, server: Server) -> None:
        job_id = add_job(server.database)
        append(server.database, job_id, 0)
        with stream(server.client, f"/v1/jobs/{job_id}/events/stream") as found:
            seen = [next(found), next(found), next(found)]
            append(server.database, job_id, 1, 2)
            seen += [next(found), next(found)]
            put(server.database, job_id, phase="training", progress={"step": 7})
            progress = next(found)
            append(server.database, job_id, *range(100))  # more than a channel keeps
            put(server.database, job_id, state="cancelled")
            seen += list(found)
        assert ids(seen) == list(range(1, 104))
        assert json.loads(progress["data"])["progress"] == {"step": 7}
        assert json.loads(progress["data"])["phase"] == "training"
        assert seen[-1] == {"event": "end", "data": '{"state": "cancelled"}'}

    @pytest.mark.parametrize("error", [OperationalError("SELECT", {}, Exception()), RuntimeError()])
    def test_a_read_that_fails_loses_nothing(
        self, server: Server, monkeypatch: pytest.MonkeyPatch, error: Exception
    ) -> None:
        """The newest events of all jobs could not be read once, and nothing happens afterwards."""
        job_id = add_job(server.database)
        read, failed = watching.events, threading.Event()

        def failing(*given: Any) -> list[EventRow]:
            if not failed.is_set():
                failed.set()
                raise error
            return read(*given)

        with stream(server.client, f"/v1/jobs/{job_id}/events/stream") as found:
            next(found), next(found)
            monkeypatch.setattr(watching, "events", failing)
            append(server.database, job_id, 0)
            put(server.database, job_id, state="succeeded")
            assert ids(list(found)) == [1]
        assert failed.is_set()

    def test_who_joins_others_costs_no_read(
        self, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job_id = add_job(server.database)
        read, of_one = watching.heads, []

        def counted(session: Any, scope: Any, job_ids: Any) -> Any:
            if isinstance(job_ids, list):  # a tick asks for all channels
                of_one.extend(job_ids)
            return read(session, scope, job_ids)

        monkeypatch.setattr(watching, "heads", counted)
        path = f"/v1/jobs/{job_id}/events/stream"
        with stream(server.client, path) as first, stream(server.client, path) as second:
            next(first), next(second)
            assert of_one == [job_id]
            append(server.database, job_id, 1)
            put(server.database, job_id, state="succeeded")
            assert ids(list(first)) == ids(list(second)) == [1]
        with stream(server.client, path, params={"after": 1}) as found:
            assert [each.get("event") for each in found] == [None, "progress", "end"]

    def test_a_comment_arrives_when_nothing_happens(
        self, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(streams, "HEARTBEAT_SECONDS", 0.05)
        path = f"/v1/jobs/{add_job(server.database)}"
        for name in ("events", "logs"):
            with server.client.stream("GET", f"{path}/{name}/stream") as answer:
                lines = answer.iter_lines()
                while not next(lines).startswith(": ping"):
                    pass
                while not next(lines).startswith(": ping"):
                    pass

    def test_a_job_that_is_deleted_ends_it(self, server: Server) -> None:
        job_id = add_job(server.database)
        with stream(server.client, f"/v1/jobs/{job_id}/events/stream") as found:
            next(found)
            with server.database.write() as session:
                session.delete(session.get_one(JobRow, job_id))
            *_, end = found
        assert end == {"event": "end", "data": '{"state": "deleted"}'}

    def test_watchers_count_to_no_limit_on_requests(
        self, server: Server, api_settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job_id = add_job(server.database)
        monkeypatch.setattr(limits, "MOST_REQUESTS", 2)
        seen: list[list[int]] = []

        def watch(url: str) -> None:
            with (
                httpx.Client(base_url=url, verify=False) as client,
                stream(client, f"/v1/jobs/{job_id}/events/stream") as found,
            ):
                ready.release()
                seen.append(ids(list(found)))

        ready = threading.Semaphore(0)
        with running(api_settings) as url:
            threads = []
            for _ in range(6):
                threads.append(threading.Thread(target=watch, args=(url,)))
                threads[-1].start()
                assert ready.acquire(timeout=10)
            append(server.database, job_id, 1, 2, 3)
            put(server.database, job_id, state="succeeded")
            for thread in threads:
                thread.join(10)
        assert seen == [[1, 2, 3]] * 6

    def test_a_server_that_stops_ends_it_at_once(
        self, server: Server, api_settings: Settings
    ) -> None:
        path = f"/v1/jobs/{add_job(server.database)}/events/stream"
        with running(api_settings) as url:
            request = server.client.build_request("GET", f"{url}{path}")
            lines = server.client.send(request, stream=True).iter_lines()
            assert next(lines).startswith("retry:")
            began = time.monotonic()
        assert time.monotonic() - began < 3
        assert '"end"' not in "".join(lines)

    def test_a_key_that_is_revoked_ends_it(
        self, api_settings: Settings, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(feed, "KEY_SECONDS", 0)
        path = f"/v1/jobs/{add_job(database)}/events/stream"
        with database.write() as session:
            row, key = keys.create(session, "watcher")
        closed = api_settings.model_copy(update={"auth": "required"})
        with (
            running(closed) as url,
            httpx.Client(
                base_url=url, headers={"Authorization": f"Bearer {key}"}, verify=False
            ) as client,
        ):
            with stream(client, path) as found:
                next(found)
                assert next(found)["event"] == "progress"
                with database.write() as session:
                    assert keys.revoke(session, row.id)
                assert [each for each in found if each["event"] == "end"] == []
            assert client.get(path).status_code == 401


def test_a_call_shortly_before_a_read_has_another_one_made(server: Server) -> None:
    """Commits within SPACING_SECONDS after a call are not announced, and the read may miss them."""

    async def call_twice() -> bool:
        live = feed.Feed(server.database, server.settings.workspace)
        live._woken.set()
        first = asyncio.create_task(live._next_tick())
        await asyncio.sleep(wake_ups.SETTLE_SECONDS / 2)
        live._woken.set()
        await first
        return live._woken.is_set()

    assert asyncio.run(call_twice())


class TestSlots:
    @pytest.fixture
    def take(self) -> Iterator[Callable[[str | None, str | None], None]]:
        """Takes one of ten places; all are given back."""
        slots, taken = StreamSlots(10), ExitStack()
        with taken:
            yield lambda key, project: taken.enter_context(slots.take(key, project))
        with ExitStack() as again:
            for number in range(10):
                again.enter_context(slots.take(f"{number}", f"{number}"))

    def test_a_key_has_half_of_them(self, take: Callable[..., None]) -> None:
        for _ in range(5):
            take("a", "project")
        with pytest.raises(TooManyStreamsError, match="5 live streams of this key"):
            take("a", "project")
        take("b", "project")

    def test_a_project_leaves_some_to_the_others(self, take: Callable[..., None]) -> None:
        for number in range(8):
            take(f"key{number}", "greedy")
        with pytest.raises(TooManyStreamsError, match="8 live streams of this project"):
            take("another", "greedy")
        take("c", "other")
        take("operator", None)
        with pytest.raises(TooManyStreamsError, match="10 live streams of all users"):
            take("d", "third")

    def test_without_keys_there_is_one_limit(self, take: Callable[..., None]) -> None:
        for _ in range(10):
            take(None, None)
        with pytest.raises(TooManyStreamsError, match="10 live streams"):
            take(None, None)


class TestLogs:
    def test_a_log_that_is_cut_off_is_sent_from_its_new_beginning(self, server: Server) -> None:
        job_id = add_job(server.database)
        log = log_of(server, job_id)
        log.write_bytes(b"before the log was rotated\n")
        with stream(server.client, f"/v1/jobs/{job_id}/logs/stream") as found:
            next(found), next(found)
            log.write_bytes(b"after it\n")
            part = json.loads(next(found)["data"])
            assert (part["content"], part["offset"], part["next_offset"]) == ("after it\n", 0, 9)
            put(server.database, job_id, state="succeeded")
            assert [each["event"] for each in found] == ["end"]

    def test_a_client_that_hangs_up_without_having_read_is_not_an_error(
        self, server: Server, caplog: pytest.LogCaptureFixture
    ) -> None:
        job_id = add_job(server.database)
        log_of(server, job_id).write_bytes(b"x" * 16 * 1024**2)
        url = server.client.base_url
        path = f"/v1/jobs/{job_id}/logs/stream"
        with socket.create_connection((url.host, url.port or 0)) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            time.sleep(0.4)  # until no more of it goes into the buffers

        def is_over() -> bool:
            messages = [record.getMessage() for record in caplog.records]
            return any("request." in each and path in each for each in messages)

        wait_until(is_over, 5, "the end of the request")
        time.sleep(0.1)
        assert [record for record in caplog.records if record.levelname == "ERROR"] == []

    def test_watchers_at_the_same_place_share_a_read(
        self, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job_id = add_job(server.database)
        log = log_of(server, job_id)
        log.touch()
        reads: list[int] = []

        def counted(folder: Path, name: str, offset: int, limit: int, *, ended: bool) -> LogPart:
            reads.append(offset)
            time.sleep(0.1)
            return read_part(folder, name, offset, limit, ended=ended)

        path = f"/v1/jobs/{job_id}/logs/stream"
        with ExitStack() as opened:
            found = [opened.enter_context(stream(server.client, path)) for _ in range(20)]
            for each in found:
                next(each)
            monkeypatch.setattr(streams, "read_part", counted)
            log.write_bytes(b"text\n")
            assert [next(each)["id"] for each in found] == ["5"] * 20
        assert reads.count(0) <= 3  # also of those that were still on their first one

    def test_every_byte_once_and_no_split_character(self, server: Server) -> None:
        job_id = add_job(server.database)
        file = log_of(server, job_id)
        whole = "Zeile äöü €\n" * 9000
        data = whole.encode()
        cut = len(data) - 3  # within the euro sign
        file.write_bytes(data[:cut])
        path = f"/v1/jobs/{job_id}/logs/stream"
        with stream(server.client, path) as found:
            next(found)
            first = next(found)
        parts = [json.loads(first["data"])["content"]]
        headers = {"Last-Event-ID": first["id"]}
        with stream(server.client, path, headers=headers) as found:
            next(found)
            part = next(found)
            parts.append(json.loads(part["data"])["content"])
            with file.open("ab") as log:
                log.write(data[cut:])
            put(server.database, job_id, state="succeeded")
            *rest, end = found
        parts += [json.loads(each["data"])["content"] for each in rest]
        assert "".join(parts) == whole
        assert rest[-1]["id"] == str(len(data))
        assert end == {"event": "end", "data": '{"state": "succeeded"}'}
