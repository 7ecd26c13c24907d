"""Attacks on uploads: empty parts, a full disk, a killed API, too many at once."""

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from chaos.faults.small_disk import NoMountError, leave_free, small_disk
from service.api.files import upload_locks
from service.api.http import limits
from service.jobs.disk_space import RESERVE, Space
from service.settings import Settings
from service.store import schema
from service.store.database import Database
from service.store.projects import keys
from tests.api.conftest import running, upload
from tests.api.factories import add_job
from tests.api.http.raw_http import address_of
from tests.api.interactive.first_answer import api_process
from tests.support.servers.services import wait_until

_HEAD = (
    b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n"
    b"Content-Type: multipart/form-data; boundary=b\r\n\r\n"
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nxxxx'
)
_FORM = {"Content-Type": "multipart/form-data; boundary=b"}


def _settings(folder: Path, url: str | None = None, **changes: object) -> Settings:
    values = {"home": folder, "database_url": url, "redis_url": "redis://127.0.0.1:1/0"}
    return Settings(**{**values, "auth": "off", **changes})  # type: ignore[arg-type]


@pytest.fixture
def client(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[httpx.Client]:
    monkeypatch.setattr(limits, "MOST_UPLOADS", 2)
    settings = _settings(tmp_path / "home", sqlite_url)
    with running(settings) as url, httpx.Client(base_url=url, timeout=30, verify=False) as client:
        yield client


class TestParts:
    @pytest.mark.parametrize(
        "part",
        [b"--b\r\n\r\n\r\n", b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\n\r\n'],
        ids=["without headers", "empty"],
    )
    def test_20000_empty_ones_are_refused(self, client: httpx.Client, part: bytes) -> None:
        answer = client.post("/v1/files", content=part * 20_000 + b"--b--\r\n", headers=_FORM)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_multipart")
        assert "more than 20 parts" in answer.json()["detail"]

    @pytest.mark.parametrize(
        "headers", [b"A: " + b"x" * 100_000 + b"\r\n", b"A: b\r\n" * 10_000], ids=["long", "many"]
    )
    def test_headers_of_a_part_are_bounded(self, client: httpx.Client, headers: bytes) -> None:
        content = b"--b\r\n" + headers + b"\r\nx\r\n--b--\r\n"
        answer = client.post("/v1/files", content=content, headers=_FORM)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_multipart")


class TestAtOnce:
    def test_one_more_is_429(self, client: httpx.Client, tmp_path: Path) -> None:
        folder = tmp_path / "home" / "files"
        with ExitStack() as stack:
            for _ in range(2):
                connection = socket.create_connection(address_of(str(client.base_url).rstrip("/")))
                stack.enter_context(connection).sendall(_HEAD)
            wait_until(lambda: folder.is_dir() and len(list(folder.iterdir())) == 2, 10, "both")
            answer = upload(client, b"x")
            assert (answer.status_code, answer.json()["code"]) == (429, "too_many_uploads")
            assert answer.headers["Retry-After"] == "2"
            assert client.get("/v1/files").status_code == 200
        wait_until(lambda: not list(folder.iterdir()), 10, "the clean-up")
        answer = upload(client, b"x")
        assert answer.status_code == 200


class TestLeftovers:
    def test_only_what_no_request_receives_is_removed(self, tmp_path: Path) -> None:
        upload_locks.sweep(tmp_path / "missing")
        (tmp_path / ".upload-of-a-killed-one").touch()
        (tmp_path / "file-rowless").touch()
        with upload_locks.create(tmp_path / ".upload-in-progress"):
            upload_locks.sweep(tmp_path)
            left = sorted(path.name for path in tmp_path.iterdir())
            assert left == [".upload-in-progress", "file-rowless"]
        upload_locks.sweep(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["file-rowless"]

    @pytest.mark.usefixtures("processes")
    def test_of_a_killed_api_are_removed_at_the_next_start(
        self, sqlite_url: str, tmp_path: Path
    ) -> None:
        folder = tmp_path / "files"
        with (
            api_process(tmp_path, sqlite_url) as (process, address),
            socket.create_connection(address) as connection,
        ):
            connection.sendall(_HEAD)
            wait_until(lambda: folder.is_dir() and any(folder.iterdir()), 10, "the upload")
            process.kill()
            process.wait(10)
        assert len(list(folder.iterdir())) == 1
        with running(_settings(tmp_path, sqlite_url)):
            assert list(folder.iterdir()) == []


@pytest.fixture
def disk(tmp_path: Path, processes: None) -> Iterator[Path]:
    try:
        with small_disk(tmp_path / "home", 40) as folder:
            yield folder
    except NoMountError as error:
        pytest.skip(str(error))


class TestFullDisk:
    """A file system of 40 MiB; 2 MiB are kept free."""

    @pytest.fixture
    def client(self, disk: Path) -> Iterator[httpx.Client]:
        settings = _settings(disk, auth="required")
        database = Database(settings.sqlalchemy_url)
        schema.upgrade(database.engine)
        with database.write() as session:
            key = keys.create(session, "me")[1]
        database.dispose()
        headers = {"Authorization": f"Bearer {key}"}
        with (
            running(settings) as url,
            httpx.Client(base_url=url, headers=headers, timeout=30, verify=False) as client,
        ):
            yield client

    def test_an_upload_that_does_not_fit_is_507_before_it_fills(
        self, client: httpx.Client, disk: Path
    ) -> None:
        before = os.statvfs(disk).f_bavail
        answer = upload(client, b"x" * (60 * 1024**2))
        assert (answer.status_code, answer.json()["code"]) == (507, "insufficient_storage")
        assert "of 40 MiB free, and the last 2 MiB are kept" in answer.json()["detail"]
        written = (before - os.statvfs(disk).f_bavail) * os.statvfs(disk).f_frsize
        assert written < 1024**2  # the log of the database
        assert upload(client, b"x" * 1000).status_code == 200

    def test_an_unannounced_one_ends_before_the_disk_is_full(
        self, client: httpx.Client, disk: Path
    ) -> None:
        def flood() -> Iterator[bytes]:
            yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
            for _ in range(60 * 16):
                yield b"x" * 2**16

        least = [os.statvfs(disk).f_bavail]
        answer = client.post("/v1/files", content=flood(), headers=_FORM)
        least.append(os.statvfs(disk).f_bavail)
        assert (answer.status_code, answer.json()["code"]) == (507, "insufficient_storage")
        assert min(least) * os.statvfs(disk).f_frsize > 2 * 1024**2

    def test_reads_and_removals_work_on_a_full_one(self, client: httpx.Client, disk: Path) -> None:
        file_id = upload(client, b"x" * (3 * 1024**2)).json()["id"]
        database = Database(f"sqlite:///{disk / 'finetune.db'}")
        job_id = add_job(database, state="failed")
        database.dispose()
        assert (disk / RESERVE).stat().st_size == 2 * 1024**2 // 8
        leave_free(disk, 0)
        ready = client.get("/health/ready")
        assert ready.status_code == 503
        assert ready.json()["parts"]["disk"].startswith("full: the disk has 0 MiB of 40 MiB free")
        assert upload(client, b"x" * 1000).status_code == 507
        assert client.get("/v1/jobs").json()["data"][0]["id"] == job_id
        assert client.get(f"/v1/files/{file_id}/content").status_code == 200
        assert client.delete(f"/v1/jobs/{job_id}").status_code == 200
        assert client.delete(f"/v1/files/{file_id}").status_code == 200
        assert client.get("/v1/files").json()["data"] == []
        assert (disk / RESERVE).is_file()
        assert client.get("/health/ready").json()["parts"]["disk"] == "ok"


class TestSpace:
    def test_says_what_is_free_and_what_is_kept(self) -> None:
        space = Space(free=2**20, total=2**40, kept=2**28)
        assert space.is_short
        assert str(space) == (
            "the disk has 1 MiB of 1,048,576 MiB free, and the last 256 MiB are kept for jobs and "
            "the database: delete files or jobs"
        )
