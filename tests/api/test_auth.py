"""Open until the first key exists; then every path but health and `/docs` needs one that works."""

import httpx
import pytest

from service.store import keys
from service.store.database import Database
from tests.api.conftest import Server

PATHS = ["/v1/jobs", "/v1/files", "/v1/tasks", "/metrics", "/openapi.json", "/nowhere"]


@pytest.fixture
def key(database: Database) -> str:
    with database.write() as session:
        return keys.create(session, "ci")[1]


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


class TestAuthentication:
    def test_open_while_there_is_no_key(self, client: httpx.Client) -> None:
        assert client.get("/v1/jobs").status_code == 200
        assert client.get("/v1/jobs", headers=bearer("ft-anything")).status_code == 200

    @pytest.mark.parametrize("path", PATHS)
    def test_every_path_needs_the_key(self, client: httpx.Client, key: str, path: str) -> None:
        refused = client.get(path)
        assert (refused.status_code, refused.json()["code"]) == (401, "unauthorized")
        assert refused.headers["www-authenticate"].startswith("Bearer")
        assert client.get(path, headers=bearer(key)).status_code != 401

    @pytest.mark.parametrize("path", ["/health/live", "/health/ready"])
    def test_health_needs_none(self, client: httpx.Client, key: str, path: str) -> None:
        assert client.get(path).status_code == 200

    @pytest.mark.parametrize("path", ["/v1/jobs", "/v1/files"])
    def test_a_post_without_the_key_is_refused(
        self, client: httpx.Client, key: str, path: str
    ) -> None:
        assert client.post(path, json={}).status_code == 401

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
            assert keys.any_active(session)
        lines = [record.msg for record in caplog.records if isinstance(record.msg, dict)]
        (line,) = (line for line in lines if line.get("path") == "/v1/jobs")
        assert line["key"] == row.id
        assert 0.1 < line["ms"] < 60_000
