"""Uploads in parts: through the openai client, and against what clients and crashes do to them."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from sqlalchemy import func, select, update

from service.api.http.middleware import MOST_BODY_BYTES
from service.jobs.retention import Retention
from service.store.database import Database, db_now
from service.store.files import uploads
from service.store.projects import quotas
from service.store.tables.files import FileRow, RemovalRow
from service.store.tables.projects import DEFAULT_PROJECT, ProjectRow
from service.store.tables.uploads import UploadPartRow, UploadRow
from service.system import locked_folder
from service.system.durable_files import sync_folder
from tests.api.conftest import Server
from tests.support.store.databases import on_both


def announce(server: Server, **changes: Any) -> httpx.Response:
    body = {"bytes": 1, "filename": "a.jsonl", "mime_type": "text/jsonl", "purpose": "fine-tune"}
    return server.client.post("/v1/uploads", json=body | changes)


def begin(server: Server, size: int, **changes: Any) -> str:
    answer = announce(server, bytes=size, **changes)
    assert answer.status_code == 200, answer.text
    upload_id: str = answer.json()["id"]
    return upload_id


def send(server: Server, upload_id: str, data: bytes) -> httpx.Response:
    return server.client.post(f"/v1/uploads/{upload_id}/parts", files={"data": ("upload", data)})


def part(server: Server, upload_id: str, data: bytes) -> str:
    answer = send(server, upload_id, data)
    assert answer.status_code == 200, answer.text
    part_id: str = answer.json()["id"]
    return part_id


def complete(server: Server, upload_id: str, *part_ids: str, **more: str) -> httpx.Response:
    body = {"part_ids": part_ids, **more}
    return server.client.post(f"/v1/uploads/{upload_id}/complete", json=body)


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def on_disk(server: Server) -> list[str]:
    home = server.settings.home
    return sorted(
        str(path.relative_to(home))
        for folder in ("files", "uploads")
        for path in (home / folder).rglob("*")
    )


def make_expired(database: Database, table: type[UploadRow] | type[FileRow]) -> None:
    with database.write() as session:
        session.execute(update(table).values(expires_at=db_now(-1)))


def sweep(database: Database, server: Server) -> None:
    Retention(database, server.settings).step()


def stored(database: Database) -> int:
    with database.read() as session:
        return quotas.stored_bytes(session, DEFAULT_PROJECT)


class TestOpenAIClient:
    def test_a_file_that_expires(
        self, server: Server, client: openai.OpenAI, database: Database
    ) -> None:
        made = client.files.create(
            file=("a", b"a"),
            purpose="batch",
            expires_after={"anchor": "created_at", "seconds": 3600},
        )
        assert made.expires_at == made.created_at + 3600
        assert [each.id for each in client.files.list(purpose="batch")] == [made.id]
        make_expired(database, FileRow)
        with pytest.raises(openai.NotFoundError):
            client.files.retrieve(made.id)
        with pytest.raises(openai.NotFoundError):
            client.files.content(made.id)
        with pytest.raises(openai.NotFoundError):
            client.files.delete(made.id)
        assert list(client.files.list()) == []
        sweep(database, server)
        assert on_disk(server) == []

    def test_the_file_of_an_upload_expires_too(self, server: Server) -> None:
        after = {"anchor": "created_at", "seconds": 7200}
        upload_id = begin(server, 1, expires_after=after)
        file = complete(server, upload_id, part(server, upload_id, b"a")).json()["file"]
        assert file["expires_at"] == file["created_at"] + 7200


class TestParts:
    def test_at_once_and_in_another_order(self, server: Server) -> None:
        upload_id = begin(server, 8 * 50_000)
        contents = [bytes([number]) * 50_000 for number in range(8)]
        with ThreadPoolExecutor(4) as pool:
            ids = list(pool.map(lambda data: part(server, upload_id, data), contents))
        answer = complete(server, upload_id, *ids[::-1]).json()
        content = server.client.get(f"/v1/files/{answer['file']['id']}/content").content
        assert content == b"".join(contents[::-1])

    def test_a_repeated_one_is_left_out(self, server: Server) -> None:
        upload_id = begin(server, 2)
        part(server, upload_id, b"ab")
        again = part(server, upload_id, b"ab")
        file = complete(server, upload_id, again).json()["file"]
        assert on_disk(server) == [f"files/{file['id']}"]

    def test_wrong_ones(self, server: Server) -> None:
        upload_id = begin(server, 3)
        path = f"/v1/uploads/{upload_id}/parts"
        assert code(send(server, upload_id, b"abcd")) == (413, "body_too_large")
        empty = send(server, upload_id, b"")
        assert code(empty) == (400, "invalid_request")
        assert empty.json()["error"]["message"].endswith("body.data: must not be empty")
        two = server.client.post(path, files=[("data", b"a"), ("data", b"b")])
        assert code(two) == (400, "invalid_multipart")
        extra = server.client.post(path, files={"data": b"a"}, data={"purpose": "batch"})
        assert code(extra) == (400, "invalid_request")
        assert extra.json()["error"]["param"] == "purpose"
        assert code(server.client.post(path, json={})) == (415, "unsupported_media_type")
        assert on_disk(server) == [f"uploads/{upload_id}"]

    def test_they_are_bounded(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(uploads, "MOST_PARTS", 4)
        monkeypatch.setattr(uploads, "LARGEST_PART", 1)
        upload_id = begin(server, 1)
        for _ in range(3):
            part(server, upload_id, b"a")
        assert code(send(server, upload_id, b"a")) == (400, "invalid_parts")  # three times as much
        upload_id = begin(server, 2)
        for _ in range(4):
            part(server, upload_id, b"a")
        assert "at most 4 parts" in send(server, upload_id, b"a").text

    def test_a_cancelled_upload_leaves_nothing(self, server: Server) -> None:
        upload_id = begin(server, 3)
        part(server, upload_id, b"abc")
        for _ in range(2):
            answer = server.client.post(f"/v1/uploads/{upload_id}/cancel")
            assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
        assert code(send(server, upload_id, b"abc")) == (409, "upload_not_pending")
        assert on_disk(server) == []

    def test_larger_than_other_bodies(self, server: Server) -> None:
        size = MOST_BODY_BYTES + 1
        assert size < server.settings.max_upload_bytes
        part(server, begin(server, size), b"a" * size)


@on_both
class TestComplete:
    def test_a_repeated_one_answers_the_same(self, server: Server) -> None:
        upload_id = begin(server, 4)
        ids = [part(server, upload_id, data) for data in (b"ab", b"cd")]
        with ThreadPoolExecutor(3) as pool:
            answers = list(pool.map(lambda _: complete(server, upload_id, *ids).json(), range(3)))
        assert answers[0]["status"] == "completed"
        assert answers == [answers[0]] * 3
        assert code(complete(server, upload_id, *ids[::-1])) == (409, "upload_not_pending")
        assert code(send(server, upload_id, b"a")) == (409, "upload_not_pending")
        cancelled = server.client.post(f"/v1/uploads/{upload_id}/cancel")
        assert code(cancelled) == (409, "upload_not_pending")
        server.client.delete(f"/v1/files/{answers[0]['file']['id']}")
        assert complete(server, upload_id, *ids).json()["file"] is None

    def test_what_does_not_fit_changes_nothing(self, server: Server) -> None:
        upload_id, other = begin(server, 4), begin(server, 4)
        ids = [part(server, upload_id, data) for data in (b"ab", b"cd")]
        foreign = part(server, other, b"ab")
        for wrong in (ids[:1], [*ids, ids[0]], [ids[0], foreign], [ids[0], "part-0"]):
            assert code(complete(server, upload_id, *wrong)) == (400, "invalid_parts")
        wrong_sum = complete(server, upload_id, *ids, md5="0" * 32)
        assert code(wrong_sum) == (400, "checksum_mismatch")
        assert complete(server, upload_id, *ids).json()["status"] == "completed"

    def test_parts_that_were_removed_meanwhile(self, server: Server) -> None:
        upload_id = begin(server, 3)
        ids = [part(server, upload_id, b"abc")]
        shutil.rmtree(server.settings.uploads_dir / upload_id)
        answer = complete(server, upload_id, *ids)
        assert code(answer) == (409, "upload_not_pending")
        says = "The upload has ended. Its parts were removed: begin another."
        assert answer.json()["error"]["message"] == says

    @pytest.mark.parametrize("broken", [1, 2, 3, 4])
    def test_it_continues_after_a_failure(
        self, server: Server, monkeypatch: pytest.MonkeyPatch, broken: int
    ) -> None:
        """The folder is synced once after each of the three parts, and after the last rename."""
        calls: list[Path] = []

        def fail(folder: Path) -> None:
            calls.append(folder)
            if len(calls) == broken:
                raise RuntimeError
            sync_folder(folder)

        upload_id = begin(server, 6)
        ids = [part(server, upload_id, data) for data in (b"ab", b"cd", b"ef")]
        monkeypatch.setattr("service.api.openai.assembly.sync_folder", fail)
        monkeypatch.setattr("service.api.files.upload.sync_folder", fail)
        assert complete(server, upload_id, *ids).status_code == 500
        file = complete(server, upload_id, *ids).json()["file"]
        assert server.client.get(f"/v1/files/{file['id']}/content").content == b"abcdef"
        assert on_disk(server) == [f"files/{file['id']}"]


@on_both
class TestLimits:
    def test_open_uploads(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(uploads, "MOST_OPEN", 2)
        first, _ = begin(server, 1), begin(server, 1)
        assert code(announce(server)) == (429, "too_many_open_uploads")
        server.client.post(f"/v1/uploads/{first}/cancel")
        begin(server, 1)

    def test_storage_of_the_project(self, server: Server, database: Database) -> None:
        with database.write() as session:
            session.execute(update(ProjectRow).values(max_bytes=10))
        first, second = begin(server, 10), begin(server, 10)
        ids = [part(server, first, b"a" * 6), part(server, second, b"b" * 4)]
        assert stored(database) == 10
        assert code(send(server, first, b"a" * 4)) == (413, "quota_exceeded")
        assert code(announce(server)) == (413, "quota_exceeded")
        server.client.post(f"/v1/uploads/{second}/cancel")
        assert stored(database) == 6
        ids[1] = part(server, first, b"a" * 4)
        assert complete(server, first, *ids).status_code == 200
        assert stored(database) == 10

    def test_wrong_announcements(self, server: Server) -> None:
        for wrong, status, param in (
            ({"bytes": 0}, 400, "bytes"),
            ({"purpose": "fine-tune-results"}, 400, "purpose"),
            ({"expires_after": {"anchor": "created_at", "seconds": 3599}}, 400, None),
            ({"bytes": server.settings.max_upload_bytes + 1}, 413, None),
        ):
            answer = announce(server, **wrong)
            assert answer.status_code == status, wrong
            if param:
                assert answer.json()["error"]["param"] == param


@on_both
class TestSweep:
    def test_an_expired_one(self, server: Server, database: Database) -> None:
        upload_id = begin(server, 2)
        part_id = part(server, upload_id, b"ab")
        make_expired(database, UploadRow)
        assert code(send(server, upload_id, b"a")) == (409, "upload_not_pending")
        assert code(complete(server, upload_id, part_id)) == (409, "upload_not_pending")
        sweep(database, server)
        assert on_disk(server) == []
        with database.read() as session:
            assert session.scalar(select(UploadRow.state)) == "expired"
            assert session.scalar(select(func.count()).select_from(UploadPartRow)) == 0
            assert list(session.scalars(select(RemovalRow.path))) == []
        with database.write() as session:
            session.execute(update(UploadRow).values(expires_at=db_now(-100_000)))
        sweep(database, server)
        with database.read() as session:
            assert session.scalar(select(UploadRow.id)) is None

    def test_not_while_it_is_completed(self, server: Server, database: Database) -> None:
        upload_id = begin(server, 2)
        part(server, upload_id, b"ab")
        make_expired(database, UploadRow)
        with locked_folder.if_free(server.settings.uploads_dir / upload_id):
            sweep(database, server)
            assert len(on_disk(server)) == 2
        sweep(database, server)
        assert on_disk(server) == []
