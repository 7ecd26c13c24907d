"""Uploads: through the real openai client, through plain HTTP, and through broken connections."""

import hashlib
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai
import pytest
from sqlalchemy import select, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from service.api.files.routes import _store
from service.api.files.upload import Upload
from service.jobs.retention import Retention
from service.settings import Settings
from service.store.database import Database, db_now
from service.store.tables.files import FileRow, RemovalRow
from service.store.tables.projects import DEFAULT_PROJECT
from tests.api.conftest import Server, code, upload, uploaded
from tests.api.factories import spec
from tests.support.servers.services import wait_until


def left(server: Server) -> list[str]:
    folder = server.settings.files_dir
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


class TestOpenAIClient:
    def test_a_file_that_a_job_needs_is_kept_and_not_asked_for_again(self, server: Server) -> None:
        file_id = uploaded(server.client)
        body = spec(dataset={"source": "upload", "train": file_id})
        job = server.client.post("/v1/jobs", json=body).json()
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=5)
        with pytest.raises(openai.ConflictError) as caught:
            client.files.delete(file_id)
        assert caught.value.request.headers["x-stainless-retry-count"] == "0"
        assert caught.value.response.headers["x-should-retry"] == "false"
        assert caught.value.code == "file_in_use"
        server.client.post(f"/v1/jobs/{job['id']}/cancel")
        assert client.files.delete(file_id).deleted
        client.close()


class TestCreateFile:
    def test_more_than_the_limit_is_413_and_leaves_nothing(self, server: Server) -> None:
        limit = server.settings.max_upload_bytes
        for size in (limit + 1, limit + 10**6):
            assert code(upload(server.client, b"x" * size)) == (413, "body_too_large")
        assert left(server) == []
        uploaded(server.client, b"x" * limit)

    def test_an_unannounced_flood_is_413(self, server: Server) -> None:
        def flood() -> object:
            yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
            for _ in range(server.settings.max_upload_bytes // 2**16 + 2):
                yield b"x" * 2**16
            yield b"\r\n--b--\r\n"

        headers = {"Content-Type": "multipart/form-data; boundary=b"}
        answer = server.client.post("/v1/files", content=flood(), headers=headers)  # type: ignore[arg-type]
        assert answer.status_code == 413
        assert left(server) == []

    def test_what_is_not_a_form(self, server: Server) -> None:
        for content_type, body, *expected in (
            ("application/json", b"{}", 415, "unsupported_media_type"),
            ("multipart/form-data", b"", 400, "invalid_multipart"),
            ("multipart/form-data; boundary=b", b"", 400, "invalid_multipart"),
            ("multipart/form-data; boundary=b", b"garbage", 400, "invalid_multipart"),
            ("multipart/form-data; boundary=b", b"--b\r\n\r\nx", 400, "invalid_multipart"),
            ("multipart/form-data; boundary=b", b"--b--\r\n", 422, "invalid_request"),
            ("multipart/form-data; boundary=" + "b" * 400, b"--b--", 400, "invalid_multipart"),
        ):
            headers = {"Content-Type": content_type}
            answer = server.client.post("/v1/files", content=body, headers=headers)
            assert [*code(answer)] == expected, answer.text
            assert left(server) == []

    def test_faults_of_the_fields(self, server: Server) -> None:
        answer = server.client.post(
            "/v1/files",
            files={"file": ("a", b"x")},
            data={
                "purpose": "fine-tuning",
                "expires_after[seconds]": "3599",
                "expires_after": "1 h",
            },
        )
        assert answer.status_code == 422
        assert [(fault["path"], fault.get("suggestion")) for fault in answer.json()["errors"]] == [
            ("body.expires_after", None),
            ("body.purpose", "fine-tune"),
            ("body.expires_after[anchor]", None),
            ("body.expires_after[seconds]", None),
        ]
        assert left(server) == []

    def test_the_name_is_only_a_name(self, server: Server) -> None:
        file_id = uploaded(server.client, b"x", "../..\\etc/passwd")
        assert server.client.get(f"/v1/files/{file_id}").json()["filename"] == "passwd"
        assert left(server) == [file_id]

    def test_a_client_that_goes_away_leaves_nothing(self, server: Server) -> None:
        address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
        with socket.create_connection(address) as connection:
            connection.sendall(
                b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n"
                b"Content-Type: multipart/form-data; boundary=b\r\n\r\n"
                b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nxxxx'
            )
            wait_until(lambda: left(server), 5, "the temporary file")
        wait_until(lambda: not left(server), 5, "the clean-up")
        assert server.client.get("/v1/files").json()["data"] == []


class TestContent:
    def test_ranges_and_etag(self, server: Server) -> None:
        file_id = uploaded(server.client, b"0123456789")
        url = f"/v1/files/{file_id}/content"
        whole = server.client.get(url)
        etag = f'"{hashlib.sha256(b"0123456789").hexdigest()}"'
        assert (whole.content, whole.headers["etag"]) == (b"0123456789", etag)
        assert whole.headers["content-length"] == "10"
        part = server.client.get(url, headers={"Range": "bytes=2-4"})
        assert (part.status_code, part.content) == (206, b"234")
        assert part.headers["content-range"] == "bytes 2-4/10"
        assert server.client.get(url, headers={"Range": "bytes=-3"}).content == b"789"
        assert server.client.get(url, headers={"If-None-Match": etag}).status_code == 304
        stale = server.client.get(url, headers={"Range": "bytes=2-4", "If-Range": '"other"'})
        assert (stale.status_code, stale.content) == (200, b"0123456789")

    def test_a_range_that_cannot_be_served_is_416(self, client: httpx.Client) -> None:
        path = f"/v1/files/{uploaded(client, b'0123456789')}/content"
        for value in ("bytes=10-", "bytes=x", "lines=1-2", "bytes=5-2", "bytes=-0"):
            answer = client.get(path, headers={"Range": value})
            assert (answer.status_code, answer.json()["code"]) == (416, "range_not_satisfiable")


class _Cut(Database):
    """Whose second COMMIT gets no answer, though the server has it, or not."""

    def __init__(self, database: Database, *, is_committed: bool) -> None:
        self._inner = database
        self._is_committed = is_committed
        self._writes = 0

    @contextmanager
    def write(self, *, audited: bool = True) -> Iterator[Session]:
        self._writes += 1
        lost = OperationalError("COMMIT", None, Exception("connection lost"))
        with self._inner.write() as session:
            yield session
            if self._writes == 2 and not self._is_committed:
                raise lost
        if self._writes == 2:
            raise lost


class TestLostCommit:
    @pytest.mark.parametrize("is_committed", [True, False])
    def test_the_file_stays_as_its_row_does(
        self, database: Database, tmp_path: Path, is_committed: bool
    ) -> None:
        settings = Settings(home=tmp_path)
        settings.files_dir.mkdir()
        partial = settings.files_dir / ".upload-file-1"
        partial.write_bytes(b"12")
        received = Upload(partial, "a.csv", 2, "0" * 64, {"purpose": "evals"})
        with pytest.raises(OperationalError):
            _store(
                _Cut(database, is_committed=is_committed),
                settings,
                DEFAULT_PROJECT,
                "file-1",
                received,
            )
        with database.write() as session:
            # A day later.
            session.execute(update(RemovalRow).values(created_at=db_now(-1)))
        Retention(database, settings).step()
        with database.read() as session:
            assert (session.get(FileRow, "file-1") is not None) is is_committed
            assert session.scalars(select(RemovalRow)).all() == []
        left = [path.name for path in settings.files_dir.iterdir()]
        assert left == (["file-1"] if is_committed else [])
