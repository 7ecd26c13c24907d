import os
from pathlib import Path

import httpx
import pytest
from sqlalchemy import update

from service.cli.stack.lock import StackAddress, write_address
from service.cli.terminal import local_key
from service.cli.terminal.client import Client
from service.store.database import Database, db_now
from service.store.projects import keys
from service.store.tables.projects import ApiKeyRow
from tests.cli.conftest import Cli

HERE = "http://127.0.0.1:8123"


@pytest.fixture
def running(home: Path, store: Database) -> Path:
    """The home of a stack that runs and has made its key."""
    write_address(
        home, StackAddress(pid=os.getpid(), url=HERE, mlflow_url=None, home=home.resolve())
    )
    assert local_key.ensure(home, store)
    return home


def key_ids(store: Database) -> list[str]:
    with store.read() as session:
        return [row.id for row in keys.list_all(session)]


class TestEnsure:
    def test_a_new_key_works_and_only_its_owner_can_read_it(
        self, running: Path, store: Database
    ) -> None:
        file = running / "authorization"
        assert file.stat().st_mode & 0o777 == 0o600
        key = file.read_text().removeprefix("Authorization: Bearer ").strip()
        with store.connect() as connection:
            holder = keys.who(connection, key)
        assert holder is not None
        assert holder.key_id == key_ids(store)[0]

    def test_the_next_start_keeps_it(self, running: Path, store: Database) -> None:
        before = (running / "authorization").read_text()
        assert not local_key.ensure(running, store)
        assert (running / "authorization").read_text() == before
        assert len(key_ids(store)) == 1

    def test_a_revoked_one_is_replaced(self, running: Path, store: Database) -> None:
        with store.write() as session:
            keys.revoke(session, key_ids(store)[0])
        assert local_key.ensure(running, store)
        assert len(key_ids(store)) == 2
        assert local_key.find(running, HERE) is not None

    def test_an_expired_one_is_replaced(self, running: Path, store: Database) -> None:
        with store.write() as session:
            session.execute(update(ApiKeyRow).values(expires_at=db_now(-1)))
        assert local_key.ensure(running, store)
        assert len(key_ids(store)) == 2

    @pytest.mark.parametrize("content", [b"", b"ft-1", b"\xff\xfe", b"Authorization: Bearer \n"])
    def test_a_damaged_file_is_replaced(
        self, running: Path, store: Database, content: bytes
    ) -> None:
        (running / "authorization").write_bytes(content)
        assert local_key.ensure(running, store)
        assert local_key.find(running, HERE) is not None


class TestFind:
    @pytest.mark.parametrize("url", ["http://127.0.0.1:8124", "https://elsewhere", f"{HERE}.org"])
    def test_no_other_server_is_sent_the_key(self, running: Path, url: str) -> None:
        assert local_key.find(running, HERE) is not None
        assert local_key.find(running, url) is None

    def test_nothing_is_sent_while_no_stack_runs(self, running: Path) -> None:
        """Another user may listen on the port meanwhile."""
        write_address(running, StackAddress(pid=2**22 + 1, url=HERE, mlflow_url=None, home=running))
        assert local_key.find(running, HERE) is None

    def test_the_variable_takes_precedence(
        self, running: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sent: list[str | None] = []

        def note(request: httpx.Request) -> httpx.Response:
            sent.append(request.headers.get("authorization"))
            return httpx.Response(200, json={})

        def handle(_: httpx.HTTPTransport, request: httpx.Request) -> httpx.Response:
            return note(request)

        monkeypatch.setattr(httpx.HTTPTransport, "handle_request", handle)
        for variable in (None, "ft-mine"):
            if variable:
                monkeypatch.setenv("FINETUNE_API_KEY", variable)
            with Client.from_environment() as client:
                client.get("/v1/jobs")
        monkeypatch.setenv("FINETUNE_URL", "http://elsewhere")
        monkeypatch.delenv("FINETUNE_API_KEY")
        with Client.from_environment() as client:
            client.get("/v1/jobs")
        kept = (running / "authorization").read_text().removeprefix("Authorization: ").strip()
        assert sent == [kept, "Bearer ft-mine", None]


class TestCommands:
    def test_without_a_key_the_answer_says_where_it_goes(
        self, cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(_: httpx.HTTPTransport, request: httpx.Request) -> httpx.Response:
            assert "authorization" not in request.headers
            return httpx.Response(401, json={"code": "unauthorized", "title": "A key is required"})

        monkeypatch.setattr(httpx.HTTPTransport, "handle_request", refuse)
        outcome = cli("list")
        assert outcome.status == 2
        assert "Set FINETUNE_API_KEY to a key of this service." in outcome.err
