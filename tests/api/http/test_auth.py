"""Every path but health and `/docs` needs a key that works, whatever the database holds."""

import asyncio
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from sqlalchemy.pool import QueuePool

from service.api.app import create_app
from service.api.http import key_use
from service.settings import Settings
from service.store.database import Database
from service.store.projects import keys
from service.store.tables.projects import ApiKeyRow
from tests.api.conftest import Server, running
from tests.support.servers.services import wait_until
from tests.support.store.databases import on_sqlite

PATHS = ["/v1/jobs", "/v1/files", "/v1/tasks", "/metrics", "/openapi.json", "/nowhere"]


@pytest.fixture
def api_settings(api_settings: Settings) -> Settings:
    return api_settings.model_copy(update={"auth": "required"})


@pytest.fixture
def key(database: Database) -> str:
    with database.write() as session:
        return keys.create(session, "ci")[1]


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


class TestAuthentication:
    def test_a_database_without_keys_opens_nothing(self, client: httpx.Client) -> None:
        for path, headers in product(PATHS, ({}, bearer("ft-anything"))):
            refused = client.get(path, headers=headers)
            assert refused.status_code == 401, path
            assert "finetune keys create <name>" in refused.json()["message"]

    def test_a_lost_database_opens_nothing(self, api_settings: Settings, tmp_path: Path) -> None:
        """SQLite makes an empty file where there is none."""
        lost = f"sqlite:///{tmp_path / 'lost.db'}"
        settings = api_settings.model_copy(update={"database_url": SecretStr(lost)})
        with running(settings) as url:
            assert httpx.get(f"{url}/v1/jobs").status_code == 401
            refused = httpx.get(f"{url}/v1/jobs", headers=bearer("ft-anything"))
        assert (refused.status_code, refused.json()["code"]) == (503, "database_unavailable")

    @pytest.mark.usefixtures("processes")  # a broker that answers
    def test_every_path_needs_the_key_but_health(self, client: httpx.Client, key: str) -> None:
        for path in PATHS:
            refused = client.get(path)
            assert (refused.status_code, refused.json()["code"]) == (401, "unauthorized"), path
            assert refused.headers["www-authenticate"].startswith("Bearer")
            assert client.get(path, headers=bearer(key)).status_code != 401, path
        for path in ("/health/live", "/health/ready"):
            assert client.get(path).status_code == 200, path

    def test_without_keys_a_project_is_named(self, api_settings: Settings) -> None:
        with running(api_settings.model_copy(update={"auth": "off"})) as url:
            for project, status in (("default", 200), ("elsewhere", 404)):
                headers = {"FineTune-Project": project}
                assert httpx.get(f"{url}/v1/jobs", headers=headers).status_code == status

    def test_a_project_that_there_is_not(self, client: httpx.Client, key: str) -> None:
        for project, status in (("default", 200), ("elsewhere", 404)):
            headers = {**bearer(key), "FineTune-Project": project}
            assert client.get("/v1/jobs", headers=headers).status_code == status

    def test_wrong_keys_are_refused(self, client: httpx.Client, key: str) -> None:
        wrong = [key[:-1], key + "x", "ft-", key.upper(), "é"]
        for value in wrong:
            headers = {b"Authorization": f"Bearer {value}".encode()}
            assert client.get("/v1/jobs", headers=headers).status_code == 401, value
        assert client.get("/v1/jobs", headers={"Authorization": key}).status_code == 401
        assert client.get("/v1/jobs", headers={"Authorization": f"Basic {key}"}).status_code == 401

    def test_a_revoked_key_is_refused_at_once_and_does_not_open(self, server: Server) -> None:
        with server.database.write() as session:
            row, key = keys.create(session, "ci")
        assert server.client.get("/v1/jobs", headers=bearer(key)).status_code == 200
        with server.database.write() as session:
            assert keys.revoke(session, row.id)
            assert not keys.revoke(session, row.id)
        assert server.client.get("/v1/jobs", headers=bearer(key)).status_code == 401
        assert server.client.get("/v1/jobs").status_code == 401

    def test_the_key_is_nowhere(
        self, server: Server, key: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        server.client.get("/v1/jobs", headers=bearer(key))
        assert key not in caplog.text
        with server.database.read() as session:
            (row,) = keys.list_all(session)
            assert key not in repr(vars(row))

        def lines() -> list[dict[str, Any]]:
            found = [record.msg for record in caplog.records if isinstance(record.msg, dict)]
            return [line for line in found if line.get("path") == "/v1/jobs"]

        # It is written after the answer was sent.
        wait_until(lambda: bool(lines()), 10, "the line of the access log")
        (line,) = lines()
        assert line["key"] == row.id
        assert 0.1 < line["ms"] < 60_000


@on_sqlite  # whose lock is that of the whole database: on Postgres nothing waits here
class TestKeyUseAtTheEnd:
    """The use of a key is written after its request: also after the last one."""

    @staticmethod
    async def end_with_locked(
        api_settings: Settings, database: Database, key_id: str, seconds: float
    ) -> tuple[int, bool]:
        """Lock the database until the app has ended, or for so long: the connections that it had
        when it closed its database, and whether the use was written by then."""
        app, found = create_app(api_settings), []
        own: Database = app.state.services.database
        close = own.dispose

        def dispose() -> None:
            with database.read() as reading:
                used_at = reading.get_one(ApiKeyRow, key_id).last_used_at
            assert isinstance(own.engine.pool, QueuePool)
            found.append((own.engine.pool.checkedout(), used_at is not None))
            close()

        own.dispose = dispose  # type: ignore[method-assign]
        lifespan = app.router.lifespan_context(app)
        await lifespan.__aenter__()
        with database.write() as session:
            session.connection()  # now the lock is held
            app.state.key_use.note(key_id)
            ending = asyncio.create_task(lifespan.__aexit__(None, None, None))
            await asyncio.wait([ending], timeout=seconds)
        await ending
        return found[0]

    def test_it_is_waited_for(self, api_settings: Settings, database: Database) -> None:
        with database.write() as session:
            row, _ = keys.create(session, "ci")
        ended = self.end_with_locked(api_settings, database, row.id, 0.2)
        assert asyncio.run(ended) == (0, True)

    def test_but_not_for_long(
        self, api_settings: Settings, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(key_use, "_LAST_SECONDS", 0.05)
        with database.write() as session:
            row, _ = keys.create(session, "ci")
        ended = self.end_with_locked(api_settings, database, row.id, 10)
        assert asyncio.run(ended) == (1, False)
